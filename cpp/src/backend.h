#pragma once

#include "dflash2/options.h"
#include "ggml-backend.h"
#include "gguf_file.h"
#include "llama.h"

#include <string>
#include <vector>

namespace dflash2 {

// What the options mean to llama.cpp, for target and drafter alike.
struct BackendParams {
    // throws std::invalid_argument for an unknown device, cache type, RPC server or flash_attn
    explicit BackendParams(const EngineOptions & options);

    // For a file that is to be loaded. The result points into this object.
    llama_model_params   model_params(const GgufFile & file);
    llama_context_params context_params() const;

    ggml_type cache_type;

private:
    std::vector<ggml_backend_dev_t> devices_;  // null-terminated; empty: llama.cpp chooses
    int32_t                         n_gpu_layers_;
    int32_t                         n_threads_;
    llama_flash_attn_type           flash_attn_;
    bool                            own_kernels_;  // for CPUs
};

// Names of the devices that hold the model.
std::vector<std::string> model_devices(const llama_model * model);

}  // namespace dflash2
