#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dflash2 {

enum class LogLevel { debug, info, warning, error };

// Lines logged by llama.cpp and by the engine since the last call, oldest first; at most the last 1000 are kept.
std::vector<std::pair<LogLevel, std::string>> drain_log();

struct Device {
    std::string name;  // as options.device takes it
    std::string description;
    std::string backend;      // "CPU", "CUDA", "Metal", "RPC" ...
    size_t      memory_free;  // bytes; 0: unknown
    size_t      memory_total;
    std::string fused_ops;  // "fused" or "composed": how the DFlash 2 ops run there
};

// Loads backends that were built as plugins, from `directory`. Does nothing for those that are linked in.
void load_backends(const std::string & directory);

std::vector<Device>      devices();
std::vector<std::string> cpu_features();  // "AVX2", "NEON" ... that ggml was built for and this CPU has

const char * llama_cpp_version();  // the pinned package version
const char * llama_cpp_commit();   // 40 hex digits

}  // namespace dflash2
