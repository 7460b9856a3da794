# horoscale_layer(<folder> [DEPENDS <folder>…]): a static library of every .cc below the folder. Headers
# of a layer are reached as "folder/file.h", and only through the targets that are linked.
function(horoscale_layer name)
  cmake_parse_arguments(LAYER "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  add_library(horoscale_${name} STATIC ${sources})
  # The include folder holds nothing but a link to the layer's own sources.
  set(include_dir ${CMAKE_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${include_dir})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${name} ${include_dir}/${name} SYMBOLIC)
  target_include_directories(horoscale_${name} PUBLIC ${include_dir})
  foreach(dependency ${LAYER_DEPENDS})
    target_link_libraries(horoscale_${name} PUBLIC horoscale_${dependency})
  endforeach()
  target_link_libraries(horoscale_${name} PRIVATE horoscale_strict)
endfunction()
