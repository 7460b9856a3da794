# Warnings, for our code only. They are errors for developers and CI; an installation with a compiler that nobody has
# tried goes on.
option(HOROSCALE_WERROR "Warnings are errors" OFF)
add_library(horoscale_warnings INTERFACE)
target_compile_options(horoscale_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual $<$<BOOL:${HOROSCALE_WERROR}>:-Werror>)
# g++ 12 sees overlapping copies in "literal" + std::string (GCC bug 105651, fixed in 13).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(horoscale_warnings INTERFACE -Wno-restrict)
endif()
# What a file keeps to itself looks to g++ like a header's in a unity build, where the file is included.
if(HOROSCALE_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(horoscale_warnings INTERFACE -Wno-subobject-linkage)
endif()
add_library(horoscale_strict INTERFACE)
target_link_libraries(horoscale_strict INTERFACE horoscale_warnings)
target_compile_options(horoscale_strict INTERFACE -fvisibility=hidden -fno-rtti)
