#pragma once

#include "ggml-cpp.h"
#include "llama.h"

#include <cstddef>
#include <string>

namespace dflash2 {

// A copy of the target's LM head in Q4_0 for the drafter. On a CPU a product of a few rows takes what reading the weights
// and unpacking them takes, and the head is the largest product of a draft pass: F16 and Q6_K take two to three times as
// long as Q4_0. Only drafts depend on it, never what is verified.
class DraftHead {
public:
    // How the head is chosen, as EngineOptions::draft_head: "auto", "target", "q4_0". n_threads: for the conversion.
    // Without memory for it there is no copy, and a warning. throws std::invalid_argument where "q4_0" cannot be had
    DraftHead(const std::string & choice, const llama_model * drafter, const llama_model * target, int32_t n_threads);

    // Null: the drafter takes the target's own, or has one itself
    ggml_tensor * tensor() const { return tensor_; }
    // Bytes it takes
    size_t n_bytes() const { return buffer_ ? ggml_backend_buffer_get_size(buffer_.get()) : 0; }

private:
    bool allocate(const ggml_tensor * head);
    bool fill(const ggml_tensor * head, int32_t n_threads);

    ggml_context_ptr        context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor *           tensor_ = nullptr;
};

}  // namespace dflash2
