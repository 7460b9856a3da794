# -DHOROSCALE_SANITIZE=address,undefined or =thread instruments everything.
if(HOROSCALE_SANITIZE)
  add_compile_options(-fsanitize=${HOROSCALE_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${HOROSCALE_SANITIZE})
  if(HOROSCALE_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
