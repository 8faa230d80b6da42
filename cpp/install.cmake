# What goes into the wheel. Upstream's own install rules have no component and are left out.

set(library_dir dflash2/lib)
if(WIN32)
    set(library_dir dflash2/bin)  # Windows looks for a program's libraries beside it
endif()

install(TARGETS _core LIBRARY DESTINATION dflash2 COMPONENT dflash2)
install(TARGETS ${LLAMA_CPP_PROGRAMS} RUNTIME DESTINATION dflash2/bin COMPONENT dflash2)

foreach(library IN LISTS LLAMA_CPP_LIBRARIES)
    set(destination ${library_dir})
    get_target_property(type ${library} TYPE)
    if(type STREQUAL "MODULE_LIBRARY")
        set(destination dflash2/bin)  # a backend built as plugin: ggml looks for those beside the program
    endif()
    install(TARGETS ${library}
        LIBRARY DESTINATION ${destination} COMPONENT dflash2
        RUNTIME DESTINATION ${destination} COMPONENT dflash2)
endforeach()

file(GLOB_RECURSE licenses RELATIVE "${LLAMA_CPP_DIR}"
    "${LLAMA_CPP_DIR}/LICENSE" "${LLAMA_CPP_DIR}/licenses/LICENSE*" "${LLAMA_CPP_DIR}/vendor/LICENSE*")
foreach(license IN LISTS licenses)
    string(REPLACE "/" "-" name "llama.cpp/${license}")
    install(FILES "${LLAMA_CPP_DIR}/${license}" DESTINATION dflash2/licenses RENAME "${name}" COMPONENT dflash2)
endforeach()
