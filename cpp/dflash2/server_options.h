#pragma once

#include <cstdint>
#include <string>

namespace dflash2 {

// What llama-server was told about DFlash 2. Names and meaning of the rest as in EngineOptions
struct ServerOptions {
    std::string draft;            // as given: a file or user/repo[:quant]; empty: no DFlash 2
    int32_t     depth      = -1;  // -1: automatic
    std::string verify     = "auto";
    float       p_min      = 0.0f;
    std::string draft_head = "auto";
    int32_t     n_ctx      = 0;  // positions of a slot that can be drafted; 0: all
};

}  // namespace dflash2
