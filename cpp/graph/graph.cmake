# Compiles the drafter's graph into libllama, which the patches make ask for it.

target_sources(llama PRIVATE "${CMAKE_CURRENT_LIST_DIR}/dflash2-graph.cpp")
set_source_files_properties("${CMAKE_CURRENT_LIST_DIR}/dflash2-graph.cpp"
    TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(llama PUBLIC "$<BUILD_INTERFACE:${CMAKE_CURRENT_LIST_DIR}>")
