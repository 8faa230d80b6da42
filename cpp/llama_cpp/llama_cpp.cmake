# Adds llama.cpp to the build: the pinned one with our patches, or the checkout that the user names.
#
# Sets LLAMA_CPP_DIR, its sources; LLAMA_CPP_VERSION and LLAMA_CPP_COMMIT, the pin; LLAMA_CPP_LIBRARIES, the shared
# libraries to ship; LLAMA_CPP_PROGRAMS, the programs to ship.

file(READ "${CMAKE_CURRENT_LIST_DIR}/pin.json" pin)
string(JSON LLAMA_CPP_VERSION GET "${pin}" version)
string(JSON LLAMA_CPP_COMMIT GET "${pin}" commit)

file(GLOB inputs CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.py" "${CMAKE_SOURCE_DIR}/*/patches/*.patch")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/pin.json" ${inputs})
set(prepare "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/prepare.py")

if(DFLASH2_LLAMA_CPP_SOURCE)
    set(LLAMA_CPP_DIR "${DFLASH2_LLAMA_CPP_SOURCE}")
    if(NOT EXISTS "${LLAMA_CPP_DIR}/include/llama.h")
        message(FATAL_ERROR "DFLASH2_LLAMA_CPP_SOURCE=${LLAMA_CPP_DIR} is no llama.cpp checkout (it has no "
            "include/llama.h): name the top folder of one, or leave the variable out to build the pinned one.")
    endif()
    execute_process(COMMAND ${prepare} --check "${LLAMA_CPP_DIR}"
        RESULT_VARIABLE failed ERROR_VARIABLE sentence ERROR_STRIP_TRAILING_WHITESPACE)
    if(failed)
        message(WARNING "${sentence}")
    endif()
else()
    # In the build folder, always under the same name, so that a changed patch compiles again only what it touches.
    set(LLAMA_CPP_DIR "${CMAKE_BINARY_DIR}/llama.cpp")
    message(STATUS "llama.cpp: commit ${LLAMA_CPP_COMMIT}, from llama-cpp-python ${LLAMA_CPP_VERSION}")
    execute_process(COMMAND ${prepare} "${LLAMA_CPP_DIR}"
        RESULT_VARIABLE failed ERROR_VARIABLE sentence ERROR_STRIP_TRAILING_WHITESPACE)
    if(failed)
        message(FATAL_ERROR "${sentence}")
    endif()
    string(SUBSTRING "${LLAMA_CPP_COMMIT}" 0 9 LLAMA_BUILD_COMMIT)
    # What else upstream's scripts ask git, they would be told about this project.
    set(ENV{GIT_CEILING_DIRECTORIES} "${CMAKE_BINARY_DIR}")
endif()

set(BUILD_SHARED_LIBS ON)
set(GGML_RPC ON)
set(LLAMA_BUILD_COMMON ON)
set(LLAMA_BUILD_TOOLS ON)
set(LLAMA_BUILD_SERVER ON)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_APP OFF)

# Upstream downloads the web page of llama-server in the middle of the build, and where packets vanish it waits a minute
# for that each time. So ask first whether there is anything to be had.
if(NOT DEFINED LLAMA_USE_PREBUILT_UI)
    set(page "https://huggingface.co/buckets/ggml-org/llama-ui/resolve/latest/dist.tar.gz.sha256")
    file(DOWNLOAD "${page}" "${CMAKE_BINARY_DIR}/ui.sha256" STATUS status TIMEOUT 5)
    list(GET status 0 failed)
    if(failed)
        set(LLAMA_USE_PREBUILT_UI OFF)
        message(STATUS "llama-server: built without its web page, huggingface.co cannot be reached")
    endif()
endif()

# The list of backends is kept in CMake's cache, and would still hold those that are switched off by now.
unset(GGML_AVAILABLE_BACKENDS CACHE)

add_subdirectory("${LLAMA_CPP_DIR}" llama.cpp-build EXCLUDE_FROM_ALL SYSTEM)

set(LLAMA_CPP_PROGRAMS llama-server llama-quantize ggml-rpc-server)
set(LLAMA_CPP_LIBRARIES
    ggml-base ggml ${GGML_AVAILABLE_BACKENDS} llama llama-common mtmd llama-server-impl llama-quantize-impl)
add_custom_target(llama-cpp ALL DEPENDS ${LLAMA_CPP_PROGRAMS} ${LLAMA_CPP_LIBRARIES})

# With a version in the name a library is a file and two symbolic links, which a wheel cannot hold. Nor is it for headers.
foreach(property VERSION SOVERSION PUBLIC_HEADER PRIVATE_HEADER)
    foreach(library IN LISTS LLAMA_CPP_LIBRARIES)
        set_property(TARGET ${library} PROPERTY ${property})
    endforeach()
endforeach()
