#include "sampler.h"

#include "dflash2/errors.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

namespace dflash2 {

namespace {

constexpr const char * not_finite =
    "[engine] the target's logits are not finite numbers: the model file is damaged, or its activations overflow";

}  // namespace

Sampler::Sampler(common_params_sampling params, const llama_model * model) :
    params_(std::move(params)), n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(model))),
    preselection_(params_, llama_model_get_vocab(model)) {
    try {
        sampler_.reset(common_sampler_init(model, params_), common_sampler_free);
    } catch (const std::exception & error) {
        throw std::invalid_argument(std::string("[sampling] the sampler chain cannot be built: ") + error.what());
    }
}

Sampler::Sampler(common_params_sampling     params,
                 const llama_model *        model,
                 common_sampler *           sampler,
                 const std::vector<Token> & history) :
    params_(std::move(params)), n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(model))),
    sampler_(sampler, [](common_sampler *) {}), preselection_(params_, llama_model_get_vocab(model)) {
    for (const Token token : history) {
        preselection_.accept(token);
    }
}

void Sampler::accept(Token token, bool generated) {
    try {
        common_sampler_accept(sampler_.get(), token, generated);
    } catch (const std::exception & error) {
        throw Error(std::string("[engine] the grammar cannot go on after a token it allowed: ") + error.what());
    }
    preselection_.accept(token);
}

// Fills candidates_ with the row as it enters the chain
void Sampler::prepare(const float * logits, bool under_grammar) {
    llama_sampler * grammar = common_sampler_get_grammar(sampler_.get());
    if ((under_grammar && grammar) || !preselection_.select(logits, n_vocab_, row_)) {
        row_.resize(n_vocab_);
        for (Token token = 0; token < n_vocab_; ++token) {
            row_[token] = { token, logits[token], 0.0f };
        }
    }
    candidates_ = { row_.data(), row_.size(), -1, false };
    llama_sampler_apply(common_sampler_get_reasoning_budget(sampler_.get()), &candidates_);
    if (under_grammar) {
        llama_sampler_apply(grammar, &candidates_);
    }
}

Token Sampler::draw_from_chain(const float * logits) {
    llama_sampler_apply(common_sampler_get(sampler_.get()), &candidates_);
    if (candidates_.selected < 0) {
        return no_token;
    }
    const llama_token_data & chosen = candidates_.data[candidates_.selected];
    if (!std::isfinite(logits[chosen.id])) {
        throw Error(not_finite);
    }
    return std::isfinite(chosen.logit) ? chosen.id : no_token;
}

Token Sampler::sample(const float * logits) {
    prepare(logits, false);
    const Token token = draw_from_chain(logits);
    if (allows(token)) {
        return token;
    }
    prepare(logits, true);
    return draw_from_chain(logits);
}

// The chain up to its last sampler, which draws, and the probabilities it would draw by
Law & Sampler::weigh() {
    llama_sampler * chain = common_sampler_get(sampler_.get());
    for (int32_t i = 0; i + 1 < llama_sampler_chain_n(chain); ++i) {
        llama_sampler_apply(llama_sampler_chain_get(chain, i), &candidates_);
    }
    law_.clear();
    float best = -INFINITY;
    for (size_t i = 0; i < candidates_.size; ++i) {
        const float logit = candidates_.data[i].logit;
        if (std::isnan(logit) || logit == INFINITY) {
            throw Error(not_finite);
        }
        best = std::max(best, logit);
    }
    if (best == -INFINITY) {
        return law_;
    }
    double sum = 0;
    for (size_t i = 0; i < candidates_.size; ++i) {
        const float p = std::exp(candidates_.data[i].logit - best);
        if (p > 0) {
            law_.push_back({ candidates_.data[i].id, p });
            sum += p;
        }
    }
    for (Outcome & outcome : law_) {
        outcome.p = (float) (outcome.p / sum);
    }
    return law_;
}

const Law & Sampler::law(const float * logits) {
    prepare(logits, false);
    return weigh();
}

const Law & Sampler::law_under_grammar(const float * logits) {
    prepare(logits, true);
    return weigh();
}

bool Sampler::allows(Token token) {
    llama_sampler * grammar = common_sampler_get_grammar(sampler_.get());
    if (!grammar) {
        return true;
    }
    if (token == no_token) {
        return false;
    }
    llama_token_data       single = { token, 1.0f, 0.0f };
    llama_token_data_array array  = { &single, 1, -1, false };
    llama_sampler_apply(grammar, &array);
    return single.logit != -INFINITY;
}

bool Sampler::has_law() const {
    llama_sampler * chain = common_sampler_get(sampler_.get());
    return llama_sampler_name(llama_sampler_chain_get(chain, llama_sampler_chain_n(chain) - 1)) == std::string("dist");
}

bool Sampler::law_is_pure() const {
    return has_law() && params_.xtc_probability <= 0 && common_grammar_value(params_.grammar).empty();
}

Mask Sampler::mask() const {
    llama_sampler * grammar = common_sampler_get_grammar(sampler_.get());
    if (!grammar) {
        return {};
    }
    const std::shared_ptr<llama_sampler> ahead(llama_sampler_clone(grammar), llama_sampler_free);
    return [ahead](const std::vector<Token> & path, const Token * ids, float * scores, int32_t n_cand) {
        if (!path.empty()) {
            try {
                llama_sampler_accept(ahead.get(), path.back());
            } catch (const std::exception &) {  // what was only drafted must not end the request
                std::fill(scores, scores + n_cand, -INFINITY);
                return;
            }
        }
        std::vector<llama_token_data> row(n_cand);
        for (int32_t c = 0; c < n_cand; ++c) {
            row[c] = { ids[c], scores[c], 0.0f };
        }
        llama_token_data_array array = { row.data(), row.size(), -1, false };
        llama_sampler_apply(ahead.get(), &array);
        for (int32_t c = 0; c < n_cand; ++c) {
            scores[c] = row[c].logit;
        }
    };
}

Sampler Sampler::clone() const {
    Sampler copy;
    copy.params_       = params_;
    copy.n_vocab_      = n_vocab_;
    copy.preselection_ = preselection_;
    copy.sampler_.reset(common_sampler_clone(sampler_.get()), common_sampler_free);
    return copy;
}

}  // namespace dflash2
