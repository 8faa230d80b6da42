#pragma once

#include "dflash2/engine.h"
#include "sampling.h"
#include "target.h"

#include <string>
#include <vector>

namespace dflash2 {

// Checks every value against its range, whether or not it is in effect. throws std::invalid_argument
void check_sampling(const SamplingOptions & options, const Target & target);

// What sample() gives when grammar and biases together allow no token: the answer ends
constexpr Token no_token = -1;

// Chooses the tokens of one request from the target's logits, through llama.cpp's sampler chain with the history of
// the request. A greedy request without anything that changes logits skips the chain and takes the argmax.
class Sampler {
public:
    // prompt: the history the penalties start from. throws std::invalid_argument for a grammar that does not parse
    Sampler(const SamplingOptions & options, const Target & target, const std::vector<Token> & prompt);

    // The token that follows row `row` of the target's last decode, or no_token. throws Error for logits that are not
    // numbers
    Token sample(const Target & target, int32_t row);
    // Makes a sampled token part of the history.
    void accept(Token token);

private:
    common_sampler_ptr chain_;  // null: argmax
};

// The target's log-probabilities at a row: of `token` and of the `n_top` likeliest
TokenLogprobs row_logprobs(const Target & target, int32_t row, Token token, int32_t n_top);

}  // namespace dflash2
