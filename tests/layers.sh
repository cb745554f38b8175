#!/usr/bin/env bash
# The arrows between the folders, as includes: prints each forbidden one and fails.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0

# forbid WHERE PATTERN WHY: no tracked or new source below WHERE includes a header that matches PATTERN.
forbid() {
  local hits
  hits=$(grep -rnE --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' --include='*.c' \
         "^[[:space:]]*#[[:space:]]*include[[:space:]]+[\"<]($2)" $1 2>/dev/null) || return 0
  echo "$hits" | sed "s|\$|    <- $3|"
  bad=1
}

grpc='grpc/|grpcpp/|lossd/v1/[a-z]+\.grpc\.pb'
forbid proto 'kernels/|server/|client/|tests/' 'proto knows nothing else'
forbid kernels "$grpc" 'kernels know no gRPC'
forbid kernels 'server/|client/|tests/' 'kernels know neither server nor client'
forbid client/embedded 'server/|tests/' 'embedded mode knows proto and kernels'
forbid 'client/c client/cpp client/conformance client/ctl client/demo' 'kernels/|server/|tests/' 'the client knows only proto'
forbid server 'client/|tests/' 'the server does not know its clients'
forbid kernels/core 'kernels/(objectives|layers|linear|cpu|cuda|ops)/' 'core is below the rest of kernels'
forbid kernels/objectives 'kernels/(layers|linear|cpu|cuda|ops)/|absl/|google/|lossd/' 'objectives are plain formulas'
forbid kernels/layers 'kernels/(linear|cpu|cuda|ops)/|google/|lossd/' 'layers are formulas and a seam that backends implement'
forbid kernels/linear 'kernels/(cpu|cuda|ops)/' 'the engine sees backends through head_backend.h'
forbid kernels/cpu 'kernels/(cuda|ops)/' 'backends do not know each other'
forbid kernels/cuda 'kernels/(cpu|ops)/' 'backends do not know each other'
forbid server/options.h "$grpc" 'the heart of the server is free of gRPC'
for heart in server/region_table server/memfd server/session server/dispatcher server/session_socket; do
  for file in "$heart".h "$heart".cc; do
    [ -f "$file" ] && forbid "$file" "$grpc" 'the heart of the server is free of gRPC'
  done
done

# What nvcc compiles stays free of absl, protobuf and gRPC.
hits=$(grep -rnE --include='*.cu' --include='*.cuh' '^[[:space:]]*#[[:space:]]*include[[:space:]]+["<](absl/|google/|grpc|lossd/v1/)' kernels)
if [ -n "$hits" ]; then echo "$hits" | sed 's|$|    <- nvcc reads only CUDA and plain headers|'; bad=1; fi

exit $bad
