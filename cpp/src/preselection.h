#pragma once

#include "common.h"
#include "dflash2/engine.h"

#include <vector>

namespace dflash2 {

// The likeliest tokens of a row, so that a chain whose result cannot depend on the others need not copy and sort the
// whole vocabulary: greedy ones and those with a top-k, when what comes before changes only the logits of tokens known
// beforehand (biases; penalties and DRY: the recent tokens).
class Preselection {
public:
    Preselection() = default;
    Preselection(const common_params_sampling & params, const llama_vocab * vocab);

    void accept(Token token);

    // Fills `row` with candidates in the order of their ids. False: the chain needs the whole row, also where equal
    // logits would make its choice depend on the order in which it sorts. (Where only biases or penalties make two of
    // them equal, right at a cut, a chain on the whole row may keep the other one.)
    bool select(const float * logits, int32_t n_vocab, std::vector<llama_token_data> & row);

private:
    int32_t              n_keep_ = 0;  // 0: always the whole row
    std::vector<Token>   biased_;
    size_t               n_window_ = 0;  // recent tokens whose logits may change
    std::vector<Token>   recent_;        // at least n_window_ of them, newest last
    std::vector<uint8_t> touched_;       // [n_vocab] scratch, zero between calls
};

}  // namespace dflash2
