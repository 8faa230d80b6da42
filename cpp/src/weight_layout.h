#pragma once

#include "gguf_file.h"

namespace dflash2 {

// Whether the weights of a file are to lie in memory as they do in the file: mapped, and read by our products for CPUs. Else
// ggml copies them at load into the layout that its own kernels want.
bool keeps_layout(const GgufFile & file);

}  // namespace dflash2
