# Warnings are errors, for our code only.
add_library(horoscale_strict INTERFACE)
target_compile_options(horoscale_strict INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror
  -fvisibility=hidden -fno-rtti)
# g++ 12 sees overlapping copies in "literal" + std::string (GCC bug 105651, fixed in 13).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(horoscale_strict INTERFACE -Wno-restrict)
endif()
