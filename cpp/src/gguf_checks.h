#pragma once

#include "gguf_file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace dflash2 {

// All of these throw ModelLoadError, in words, for what llama.cpp would end the process over or not notice.

[[noreturn]] void bad_file(const GgufFile & file, const std::string & what);

// A required key that is at least 1 and fits into 32 bits.
int32_t positive(const GgufFile & file, const std::string & key);

// A tensor that must be there, with this shape in ggml order.
void check_shape(const GgufFile & file, const std::string & name, const std::vector<int64_t> & wanted);

// Metadata that every model has under the name of its architecture, and its tokenizer.
void check_model(const GgufFile & file);

}  // namespace dflash2
