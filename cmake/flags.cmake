# Our warnings and sanitizers, so that other people's code does not get them.
add_library(lossd_flags INTERFACE)
add_library(lossd::flags ALIAS lossd_flags)
target_compile_options(lossd_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers>)
if(LOSSD_WERROR)
  target_compile_options(lossd_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# Apart from the warnings, since generated code needs them too: protobuf's headers differ under the thread sanitizer.
add_library(lossd_sanitizers INTERFACE)
add_library(lossd::sanitizers ALIAS lossd_sanitizers)
if(LOSSD_SANITIZE)
  target_compile_options(lossd_sanitizers INTERFACE
    $<$<COMPILE_LANGUAGE:CXX,C>:-fsanitize=${LOSSD_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX,C>:-fno-omit-frame-pointer>)
  target_link_options(lossd_sanitizers INTERFACE -fsanitize=${LOSSD_SANITIZE})
endif()
target_link_libraries(lossd_flags INTERFACE lossd_sanitizers)
# Sources name headers by their path from the root.
target_include_directories(lossd_flags INTERFACE ${CMAKE_SOURCE_DIR})
