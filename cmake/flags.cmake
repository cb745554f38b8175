# Our warnings and sanitizers, so that other people's code does not get them.
add_library(lossd_flags INTERFACE)
add_library(lossd::flags ALIAS lossd_flags)
target_compile_options(lossd_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers>)
if(LOSSD_WERROR)
  target_compile_options(lossd_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LOSSD_SANITIZE)
  target_compile_options(lossd_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOSSD_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(lossd_flags INTERFACE -fsanitize=${LOSSD_SANITIZE})
endif()
# Sources name headers by their path from the root.
target_include_directories(lossd_flags INTERFACE ${CMAKE_SOURCE_DIR})
