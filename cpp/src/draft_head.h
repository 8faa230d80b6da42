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
    // throws ModelLoadError where a copy is asked for and cannot be made
    DraftHead(const std::string & choice, const llama_model * drafter, const llama_model * target, int32_t n_threads);

    // Null: the drafter takes the target's own, or has one itself
    ggml_tensor * tensor() const { return tensor_; }
    // Bytes it takes
    size_t n_bytes() const { return buffer_ ? ggml_backend_buffer_get_size(buffer_.get()) : 0; }

private:
    void allocate(const ggml_tensor * head);
    void fill(const ggml_tensor * head, int32_t n_threads);

    ggml_context_ptr        context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_tensor *           tensor_ = nullptr;
};

}  // namespace dflash2
