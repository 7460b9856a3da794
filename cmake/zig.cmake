# The compiler of the wheels (cmake/build_wheels.py, which sets the variables): zig's clang.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{WHEEL_MACHINE})
set(CMAKE_C_COMPILER $ENV{CC})
set(CMAKE_CXX_COMPILER $ENV{CXX})
set(CMAKE_AR $ENV{AR} CACHE FILEPATH "")
set(CMAKE_RANLIB $ENV{RANLIB} CACHE FILEPATH "")
