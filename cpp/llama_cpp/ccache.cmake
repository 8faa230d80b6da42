# Compiles through ccache where there is one, unless the user has another launcher or says GGML_CCACHE=OFF as upstream.
option(GGML_CCACHE "use ccache if available" ON)
find_program(CCACHE_PROGRAM ccache)
if(GGML_CCACHE AND CCACHE_PROGRAM AND NOT CMAKE_C_COMPILER_LAUNCHER AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(launcher "${CCACHE_PROGRAM}")
    if(UNIX)
        # Paths below the project are cached as relative ones, so that every clone of it hits. Not through "cmake -E env":
        # in an isolated build CMake itself may have another path each time, and a changed command compiles all again.
        set(launcher env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_SLOPPINESS=time_macros "${CCACHE_PROGRAM}")
    endif()
    foreach(language C CXX CUDA HIP OBJC OBJCXX)
        set(CMAKE_${language}_COMPILER_LAUNCHER "${launcher}")
    endforeach()
endif()
