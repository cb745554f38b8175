# Debian's gRPC, protobuf and Abseil. Protobuf first: its package has no config file, and gRPC's falls back to this module.
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)

add_library(lossd_grpc_libraries INTERFACE)
add_library(lossd::grpc_libraries ALIAS lossd_grpc_libraries)
target_link_libraries(lossd_grpc_libraries INTERFACE gRPC::grpc++ gRPC::grpc++_reflection)

add_library(lossd_absl INTERFACE)
add_library(lossd::absl ALIAS lossd_absl)
target_link_libraries(lossd_absl INTERFACE absl::status absl::statusor absl::strings absl::cord absl::time absl::span)
