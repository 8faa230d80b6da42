#pragma once

#include "../../cpp/src/lattice.h"
#include "answers.h"

#include <random>

namespace dflash2 {

// A target whose next token depends on the last one alone, and drafters for it.

// Close to normal, the same numbers with every standard library
inline float noise(std::mt19937 & random) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) {
        sum += random() / 4294967296.0;
    }
    return (float) sum;
}

struct TableTarget {
    std::vector<float> logits;  // [n_vocab last][n_vocab next]

    TableTarget() : logits((size_t) n_vocab * n_vocab) {
        std::mt19937 random(1);
        for (int32_t last = 0; last < n_vocab; ++last) {
            for (int32_t next = 0; next < n_vocab; ++next) {
                float logit = 1.5f * noise(random);
                // steps that make ties, at the top too
                logit = last % 2 == 0 ? std::round(2 * logit) / 2 : logit;

                logits[(size_t) last * n_vocab + next] = next == TinyVocabulary::end ? -0.5f : logit;
            }
        }
    }

    const float * row(llama_token last) const { return logits.data() + (size_t) last * n_vocab; }
};

enum class Drafting {
    good,         // the target's logits with some noise
    bad,          // nothing to do with the target; every token is a candidate
    adversarial,  // candidates the target likes least, and sure of them
};

// The lattices of a drafter, one for each anchor.
inline std::vector<Lattice> table_drafter(const TableTarget & target, Drafting kind) {
    constexpr int32_t    n_slots = 3;
    const int32_t        n_cand  = kind == Drafting::bad ? n_vocab : 6;
    std::mt19937         random(2 + (uint32_t) kind);
    std::vector<Lattice> lattices;
    for (llama_token anchor = 0; anchor < n_vocab; ++anchor) {
        Lattice lattice = { n_slots, n_cand, {}, {} };

        std::vector<llama_token> before(n_cand, anchor);
        for (int32_t slot = 0; slot < n_slots; ++slot) {
            std::vector<std::pair<float, llama_token>> order;
            for (llama_token token = 0; token < n_vocab; ++token) {
                float liking = 0;  // how much the predecessors call for the token
                for (const llama_token last : before) {
                    liking += std::exp(target.row(last)[token]);
                }
                order.emplace_back(kind == Drafting::adversarial ? liking : -liking, token);
            }
            std::sort(order.begin(), order.end());
            std::vector<llama_token> ids;
            for (int32_t c = 0; c < n_cand; ++c) {
                ids.push_back(order[c].second);
            }
            for (const llama_token last : before) {
                for (const llama_token token : ids) {
                    const float logit = target.row(last)[token];
                    const float other = noise(random);
                    lattice.scores.push_back(kind == Drafting::good ? logit + 0.4f * other :
                                             kind == Drafting::bad  ? 2.0f * other :
                                                                      4.0f * other);
                }
            }
            lattice.ids.insert(lattice.ids.end(), ids.begin(), ids.end());
            before = ids;
        }
        lattices.push_back(lattice);
    }
    return lattices;
}

}  // namespace dflash2
