#pragma once

#include "dflash2/engine.h"
#include "lattice.h"
#include "law.h"
#include "preselection.h"
#include "sampling.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace dflash2 {

// What the chain gives when grammar and biases together allow no token: the answer ends
constexpr Token no_token = -1;

// llama.cpp's sampler chain of one request with its history: draws from it, and says by which law it would draw.
// Rows of logits are [n_vocab]. Both throw Error for logits that are not numbers.
class Sampler {
public:
    // throws std::invalid_argument for a grammar that does not parse
    Sampler(common_params_sampling params, const llama_model * model);
    // Drives a sampler that belongs to somebody else, was made of `params`, and has accepted `history`
    Sampler(common_params_sampling     params,
            const llama_model *        model,
            common_sampler *           sampler,
            const std::vector<Token> & history);

    // Makes a token part of the history. generated: of the answer, else of the prompt. throws Error
    void accept(Token token, bool generated = true);

    // The chain's own draw, or no_token
    Token sample(const float * logits);

    // The law of the chain without its grammar, empty when it leaves nothing. Valid until the next call.
    const Law & law(const float * logits);
    // The same with the grammar applied before the chain, as llama.cpp draws again when a token does not fit
    const Law & law_under_grammar(const float * logits);
    // Whether the grammar allows a token, no_token included
    bool allows(Token token);

    // Whether there is a law: mirostat and adaptive-p choose one token instead
    bool has_law() const;
    // Whether law() depends on history and logits alone: no grammar, no random numbers (XTC) inside
    bool law_is_pure() const;

    float temperature() const { return std::max(params_.temp, 0.0f); }
    // Whether only one token is left to choose
    bool is_greedy() const { return params_.temp <= 0 || params_.top_k == 1; }

    // The grammar along a drafted path; empty when there is none
    Mask mask() const;

    Sampler clone() const;

private:
    Sampler() = default;

    void  prepare(const float * logits, bool under_grammar);
    Law & weigh();
    Token draw_from_chain(const float * logits);

    common_params_sampling          params_;
    int32_t                         n_vocab_ = 0;
    std::shared_ptr<common_sampler> sampler_;
    Preselection                    preselection_;
    std::vector<llama_token_data>   row_;
    llama_token_data_array          candidates_ = {};
    Law                             law_;
};

}  // namespace dflash2
