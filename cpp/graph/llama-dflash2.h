#pragma once

// What libllama can do with a DFlash 2 drafter beyond upstream: its graph built on the ops of ggml-dflash2.h. Compiled
// into libllama, which asks for it where the patches say so.

#include "llama.h"

// llama_context_params::dflash2. With the upstream graph a context does what it does without this project; the others
// run the head on slot rows only and leave ids and scores as they are.
enum llama_dflash2 {
    LLAMA_DFLASH2_UPSTREAM = 0,
    // composed but for the ops that are named
    LLAMA_DFLASH2_COMPOSED = 8,
    LLAMA_DFLASH2_CONV     = 1,
    LLAMA_DFLASH2_TOPK     = 2,
    LLAMA_DFLASH2_SCORE    = 4,
    LLAMA_DFLASH2_FUSED    = LLAMA_DFLASH2_COMPOSED | LLAMA_DFLASH2_CONV | LLAMA_DFLASH2_TOPK | LLAMA_DFLASH2_SCORE,
    // of the fused ops those that run where their input is: the others would be taken to the CPU and back
    LLAMA_DFLASH2_AUTO = 16 | LLAMA_DFLASH2_FUSED,
    // of a target: the graph of its architecture. Whatever is not upstream has ggml_dflash2_own_kernels_in()
    LLAMA_DFLASH2_TARGET = 32,
};

// What a context has: never LLAMA_DFLASH2_AUTO
LLAMA_API int32_t llama_get_dflash2(const llama_context * ctx);

// The LM head of a target as it lies in memory, [n_embd, n_vocab]: what llama_context_params::dflash2_head can replace
// for its drafter. Null where the drafter has a head of its own, or the product is scaled
LLAMA_API const ggml_tensor * llama_dflash2_head(const llama_model * drafter, const llama_model * target);

// Copies what the last decode of blocks left: `ids` I32 [sequences][slots][K], ordered by (logit descending, id
// ascending), and `scores` F32 [sequences][slots][K predecessors][K candidates]; n_ids, n_scores: elements of each.
// false when the last graph was none of blocks or has other sizes; a drafter of DFlash 1 leaves one id a slot, no scores
LLAMA_API bool llama_read_dflash2(llama_context * ctx, int32_t * ids, size_t n_ids, float * scores, size_t n_scores);
