#pragma once

#include "dflash2/engine.h"
#include "gguf_file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace dflash2 {

// What a drafter's GGUF says about it. Names and units as in the file.
struct DrafterInfo {
    int32_t              n_embd      = 0;  // hidden size, the target's too
    int32_t              n_layer     = 0;
    int32_t              block_size  = 0;  // rows of one pass, anchor included
    int32_t              n_cand      = 0;  // candidates per slot; 0: DFlash 1, which has no selector
    int32_t              window      = 0;  // sliding window; 0: none
    bool                 all_sliding = false;
    bool                 causal      = false;
    Token                mask_token  = -1;
    std::vector<int32_t> taps;               // target layers whose *input* is read: 0-based layer of the checkpoint + 1
    int32_t              target_layers = 0;  // layers of the target it was trained for; 0: the file does not say
};

// throws ModelLoadError for a file that is no complete text model, e.g. a drafter.
void check_target(const GgufFile & file);

// throws ModelLoadError for a file that is no complete DFlash or DFlash 2 drafter.
DrafterInfo check_drafter(const GgufFile & file);

// throws ModelMismatch when the drafter was made for another target.
void check_pair(const DrafterInfo & info, const GgufFile & drafter, const GgufFile & target);

// Most draft tokens per cycle. wanted: -1 for automatic, which is what the drafter was trained for; more than a block
// holds is clamped with a warning
int32_t choose_depth(int32_t wanted, const DrafterInfo & info);

}  // namespace dflash2
