# Warnings are errors, for our code only.
add_library(horoscale_strict INTERFACE)
target_compile_options(horoscale_strict INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror
  -fvisibility=hidden -fno-rtti)
