#pragma once

#include "dflash2/engine.h"
#include "target.h"

namespace dflash2 {

// The target's log-probabilities at a row: of `token` and of the `n_top` likeliest
TokenLogprobs row_logprobs(const Target & target, int32_t row, Token token, int32_t n_top);

}  // namespace dflash2
