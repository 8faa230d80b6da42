#pragma once

#include "ggml.h"

#include <cstdint>

namespace dflash2 {

// start_us: of ggml_time_us()
inline double seconds_since(int64_t start_us) {
    return 1e-6 * (double) (ggml_time_us() - start_us);
}

}  // namespace dflash2
