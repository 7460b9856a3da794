# The tests of architecture-specific code, cross-compiled (cmake/arm64.cmake) and run in an emulator. GoogleTest is
# built from the sources in Debian's package googletest.
include(GoogleTest)
add_subdirectory(/usr/src/googletest googletest EXCLUDE_FROM_ALL)

# Of the collectives, only the arithmetic depends on the processor.
foreach(arithmetic adasum fold encoding)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/collectives/${arithmetic}.cc
       ${PROJECT_SOURCE_DIR}/cpp/collectives/${arithmetic}_*.cc)
  list(FILTER sources EXCLUDE REGEX "fold_loop|adasum_(allreduce|stages)")
  add_executable(unit_${arithmetic} unit/collectives/${arithmetic}_test.cc ${sources}
                 ${PROJECT_SOURCE_DIR}/cpp/platform/processor.cc)
  target_include_directories(unit_${arithmetic} PRIVATE
    ${CMAKE_CURRENT_SOURCE_DIR} $<TARGET_PROPERTY:horoscale_collectives,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_options(unit_${arithmetic} PRIVATE -ffp-contract=off -O3)
  target_link_libraries(unit_${arithmetic} PRIVATE horoscale_base horoscale_strict GTest::gtest_main)
  gtest_discover_tests(unit_${arithmetic} PROPERTIES TIMEOUT 120 DISCOVERY_TIMEOUT 60)
endforeach()
