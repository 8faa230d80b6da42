#pragma once

#include "answers.h"
#include "chains.h"
#include "table_pair.h"

#include <memory>

namespace dflash2 {

// Decoding without a drafter by llama.cpp's own samplers, as common_sampler_sample() does it: reasoning budget, chain,
// and where the grammar refuses the token, once more with the grammar before the chain.
namespace reference {

inline common_sampler_ptr make(const Chain & chain, const llama_model * model) {
    common_params_sampling params = chain.params;
    return common_sampler_ptr(common_sampler_init(model, params));
}

inline common_sampler_ptr clone(const common_sampler_ptr & sampler) {
    return common_sampler_ptr(common_sampler_clone(sampler.get()));
}

inline void accept_prompt(const common_sampler_ptr & sampler) {
    for (const llama_token token : chain_prompt()) {
        common_sampler_accept(sampler.get(), token, false);
    }
}

inline bool allows(const common_sampler_ptr & sampler, llama_token token) {
    llama_token_data       single = { token, 1.0f, 0.0f };
    llama_token_data_array array  = { &single, 1, -1, false };
    llama_sampler_apply(common_sampler_get_grammar(sampler.get()), &array);
    return single.logit != -INFINITY;
}

// The row after the whole chain, its last sampler included: `selected` and every p are set. `coins`: the sampler whose
// random numbers count
inline llama_token_data_array apply(const common_sampler_ptr &      sampler,
                                    const common_sampler_ptr &      coins,
                                    const float *                   logits,
                                    bool                            grammar_first,
                                    std::vector<llama_token_data> & row) {
    for (size_t i = 0; i < row.size(); ++i) {
        row[i] = { (llama_token) i, logits[i], 0.0f };
    }
    llama_token_data_array array = { row.data(), row.size(), -1, false };
    llama_sampler_apply(common_sampler_get_reasoning_budget(sampler.get()), &array);
    if (grammar_first) {
        llama_sampler_apply(common_sampler_get_grammar(sampler.get()), &array);
    }
    llama_sampler * chain        = common_sampler_get(sampler.get());
    llama_sampler * random_chain = common_sampler_get(coins.get());
    for (int32_t i = 0; i < llama_sampler_chain_n(chain); ++i) {
        llama_sampler *   own    = llama_sampler_chain_get(chain, i);
        const std::string name   = llama_sampler_name(own);
        const bool        random = name == "dist" || name == "xtc";
        llama_sampler_apply(random ? llama_sampler_chain_get(random_chain, i) : own, &array);
    }
    return array;
}

inline llama_token sample(const common_sampler_ptr &      sampler,
                          const common_sampler_ptr &      coins,
                          const float *                   logits,
                          std::vector<llama_token_data> & row) {
    llama_token_data_array array = apply(sampler, coins, logits, false, row);
    const llama_token      token = array.data[array.selected].id;
    if (allows(sampler, token)) {
        return token;
    }
    array = apply(sampler, coins, logits, true, row);
    return array.data[array.selected].id;
}

// A chain without random numbers of its own: XTC either acts or does not
struct Branch {
    double             weight;
    common_sampler_ptr sampler;
};

inline std::vector<double>
probabilities(const std::vector<Branch> & branches, const float * logits, bool grammar_first) {
    std::vector<double>           p(n_vocab);
    std::vector<llama_token_data> row(n_vocab);
    for (const Branch & branch : branches) {
        const llama_token_data_array array = apply(branch.sampler, branch.sampler, logits, grammar_first, row);
        for (size_t i = 0; i < array.size; ++i) {
            p[array.data[i].id] += branch.weight * array.data[i].p;
        }
    }
    return p;
}

inline std::vector<double> next_law(const std::vector<Branch> & branches, const float * logits) {
    std::vector<double> p       = probabilities(branches, logits, false);
    double              refused = 0;
    for (llama_token token = 0; token < n_vocab; ++token) {
        if (p[token] > 0 && !allows(branches.front().sampler, token)) {
            refused += p[token];
            p[token] = 0;
        }
    }
    if (refused > 0) {
        const std::vector<double> again = probabilities(branches, logits, true);
        for (llama_token token = 0; token < n_vocab; ++token) {
            p[token] += refused * again[token];
        }
    }
    return p;
}

inline void enumerate(
    const TableTarget & target, const std::vector<Branch> & branches, Answer & answer, double weight, AnswerLaw & law) {
    if (answer.size() == n_answer) {
        law[cell(answer)] += weight;
        return;
    }
    const llama_token last = answer.empty() ? chain_prompt().back() : answer.back();
    if (last == TinyVocabulary::end) {
        answer.push_back(last);
        enumerate(target, branches, answer, weight, law);
        answer.pop_back();
        return;
    }
    const std::vector<double> p = next_law(branches, target.row(last));
    for (llama_token token = 0; token < n_vocab; ++token) {
        if (p[token] > 0) {
            answer.push_back(token);
            std::vector<Branch> after;
            for (size_t i = 0; i < branches.size() && answer.size() < n_answer; ++i) {
                after.push_back({ branches[i].weight, clone(branches[i].sampler) });
                common_sampler_accept(after.back().sampler.get(), token, true);
            }
            enumerate(target, after, answer, weight * p[token], law);
            answer.pop_back();
        }
    }
}

// Exact, from the probabilities that the chain leaves
inline AnswerLaw law(const Chain & chain, const TableTarget & target, const llama_model * model) {
    std::vector<Branch> branches;
    const double        acts = chain.params.xtc_probability;
    for (const bool xtc : { false, true }) {
        const double weight = xtc ? acts : 1 - acts;
        if (weight > 0) {
            Chain fixed                  = chain;
            fixed.params.xtc_probability = xtc ? 1.0f : 0.0f;
            branches.push_back({ weight, make(fixed, model) });
            accept_prompt(branches.back().sampler);
        }
    }
    AnswerLaw result(n_cells);
    Answer    answer;
    enumerate(target, branches, answer, 1, result);
    return result;
}

inline AnswerCounts draw(const Chain & chain, const TableTarget & target, const llama_model * model, int32_t n) {
    const common_sampler_ptr coins = make(chain, model);
    common_sampler_ptr       first = make(chain, model);
    accept_prompt(first);
    common_sampler_ptr            copy;
    AnswerCounts                  counts(n_cells);
    std::vector<llama_token_data> row(n_vocab);
    for (int32_t i = 0; i < n; ++i) {
        if (chain.only_looks_back()) {
            accept_prompt(first);
        } else {
            copy = clone(first);
        }
        const common_sampler_ptr & sampler = copy ? copy : first;
        Answer                     answer;
        llama_token                last = chain_prompt().back();
        while (answer.size() < n_answer) {
            if (last != TinyVocabulary::end) {
                last = sample(sampler, coins, target.row(last), row);
                common_sampler_accept(sampler.get(), last, true);
            }
            answer.push_back(last);
        }
        counts[cell(answer)] += 1;
    }
    return counts;
}

}  // namespace reference

}  // namespace dflash2
