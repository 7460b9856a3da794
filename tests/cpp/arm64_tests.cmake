# What depends on the processor, compiled for another one (cmake/arm64.cmake) and run by its emulator. GoogleTest is
# compiled from its sources, which Debian's package googletest has.
include(GoogleTest)
add_subdirectory(/usr/src/googletest googletest EXCLUDE_FROM_ALL)

# Of the collectives the arithmetic alone: the rest is the same on all processors.
file(GLOB fold_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/collectives/fold.cc
     ${PROJECT_SOURCE_DIR}/cpp/collectives/fold_*.cc)
list(FILTER fold_sources EXCLUDE REGEX fold_loop)
add_executable(unit_fold unit/collectives/fold_test.cc ${fold_sources} ${PROJECT_SOURCE_DIR}/cpp/platform/processor.cc)
target_include_directories(unit_fold PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR} $<TARGET_PROPERTY:horoscale_collectives,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_options(unit_fold PRIVATE -ffp-contract=off -O3)
target_link_libraries(unit_fold PRIVATE horoscale_base horoscale_strict GTest::gtest_main)
gtest_discover_tests(unit_fold PROPERTIES TIMEOUT 120 DISCOVERY_TIMEOUT 60)
