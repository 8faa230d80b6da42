#pragma once

#include "acceptance_model.h"
#include "dflash2/engine.h"
#include "proposal.h"
#include "sampler.h"
#include "text_stream.h"
#include "verify.h"

#include <algorithm>
#include <string>
#include <vector>

namespace dflash2 {

// One request from submit() to its last chunk.
struct Sequence {
    int64_t         id;
    SamplingOptions options;
    Sampler         sampler;
    Rule            rule;
    Randoms         randoms;
    TextStream      text;
    Stats           stats;

    std::vector<Token> tokens;  // prompt and answer; while generating the last one is the anchor
    int32_t            n_prompt;
    SequenceAcceptance acceptance     = {};
    ProposalLearner    proposals      = {};
    llama_seq_id       slot           = -1;  // -1: waits for one
    int32_t            n_past         = 0;   // of tokens: in the caches of target and drafter
    int64_t            first_token_us = 0;
    bool               cancelled      = false;
    std::string        finish_reason  = "";  // while it runs

    int32_t n_generated() const { return (int32_t) tokens.size() - n_prompt; }
    bool    in_prompt() const { return n_past < n_prompt; }

    // Most draft tokens that can still be of use: the bonus token comes on top, and every row needs a place in the cache
    int32_t room(int32_t n_ctx) const {
        return std::max(0, std::min(options.max_tokens - n_generated() - 1, n_ctx - 1 - n_past));
    }

    bool is_stop_token(Token token) const {
        return std::find(options.stop_token_ids.begin(), options.stop_token_ids.end(), token) !=
               options.stop_token_ids.end();
    }
};

}  // namespace dflash2
