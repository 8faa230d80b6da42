# Compiles the ops into ggml's own libraries, which the patches make call them. Wants LLAMA_CPP_DIR, added to the build.

set(GGML_OPS_DIR "${CMAKE_CURRENT_LIST_DIR}")

target_sources(ggml-base PRIVATE "${GGML_OPS_DIR}/dflash2.cpp")
target_include_directories(ggml-base PUBLIC "$<BUILD_INTERFACE:${GGML_OPS_DIR}>")

get_property(ggml_targets DIRECTORY "${LLAMA_CPP_DIR}/ggml/src" PROPERTY BUILDSYSTEM_TARGETS)
# one for each variant of the CPU where GGML_CPU_ALL_VARIANTS is on
list(FILTER ggml_targets INCLUDE REGEX "^ggml-cpu")
list(FILTER ggml_targets EXCLUDE REGEX "-feats$")
file(GLOB cpu_sources CONFIGURE_DEPENDS "${GGML_OPS_DIR}/cpu/*.cpp")
foreach(target IN LISTS ggml_targets)
    # see ggml-dflash2.h: a compiler that joins products and sums would round once less
    if(NOT MSVC)
        set_source_files_properties("${GGML_OPS_DIR}/cpu/dflash2-conv.cpp"
            TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
    endif()
    target_sources(${target} PRIVATE ${cpu_sources})
    target_include_directories(${target} PRIVATE "${GGML_OPS_DIR}/cpu")
endforeach()

# The sources for CUDA are those for HIP and MUSA too, compiled as upstream compiles its own there.
file(GLOB cuda_sources CONFIGURE_DEPENDS "${GGML_OPS_DIR}/cuda/*.cu")
set(dispatch "${LLAMA_CPP_DIR}/ggml/src/ggml-cuda/ggml-cuda.cu")
foreach(target IN ITEMS ggml-cuda ggml-hip ggml-musa)
    if(TARGET ${target})
        target_sources(${target} PRIVATE ${cuda_sources})
        target_include_directories(${target} PRIVATE "${GGML_OPS_DIR}/cuda" "${LLAMA_CPP_DIR}/ggml/src/ggml-cuda")
        foreach(property IN ITEMS LANGUAGE COMPILE_FLAGS)
            get_source_file_property(value "${dispatch}" TARGET_DIRECTORY ${target} ${property})
            if(value)
                set_source_files_properties(${cuda_sources} TARGET_DIRECTORY ${target} PROPERTIES ${property} "${value}")
            endif()
        endforeach()
    endif()
endforeach()

if(TARGET ggml-metal)
    add_subdirectory("${GGML_OPS_DIR}/metal")
endif()
