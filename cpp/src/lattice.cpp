#include "lattice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dflash2 {

namespace {

// softmax(scores / temperature); empty when no score is above -inf
std::vector<float> softmax(const std::vector<float> & scores, float temperature) {
    const float best = *std::max_element(scores.begin(), scores.end());
    if (!(best > -INFINITY)) {
        return {};
    }
    std::vector<float> p(scores.size());
    double             sum = 0;
    for (size_t c = 0; c < p.size(); ++c) {
        p[c] = std::exp((scores[c] - best) / temperature);
        sum += p[c];
    }
    for (float & value : p) {
        value = (float) (value / sum);
    }
    return p;
}

}  // namespace

Draft walk(const Lattice & lattice, const WalkOptions & options, Random & random) {
    const int32_t      n_cand = lattice.n_cand;
    const bool         greedy = options.temperature == 0.0f;
    Draft              draft;
    std::vector<float> scores(n_cand);
    int32_t            predecessor = 0;
    for (int32_t slot = 0; slot < std::min(options.depth, lattice.n_slots); ++slot) {
        const Token * ids = lattice.ids.data() + (size_t) slot * n_cand;
        const float * row = lattice.scores.data() + ((size_t) slot * n_cand + predecessor) * n_cand;
        std::transform(row, row + n_cand, scores.begin(), [](float score) {
            return std::isnan(score) ? -INFINITY : std::min(score, std::numeric_limits<float>::max());
        });
        if (options.mask) {
            options.mask(draft.tokens, ids, scores.data(), n_cand);
        }
        const std::vector<float> p = softmax(scores, greedy ? 1.0f : std::max(options.temperature, 1e-5f));
        if (p.empty()) {
            break;
        }
        draft.confidence.push_back(*std::max_element(p.begin(), p.end()));
        if (options.extend && !options.extend(draft.confidence)) {
            break;
        }
        if (greedy) {
            predecessor = (int32_t) (std::max_element(scores.begin(), scores.end()) - scores.begin());
        } else {
            Law q(n_cand);
            for (int32_t c = 0; c < n_cand; ++c) {
                q[c] = { ids[c], p[c] };
            }
            predecessor = (int32_t) draw_index(q, random);
            q.erase(std::remove_if(q.begin(), q.end(), [](const Outcome & outcome) { return outcome.p == 0; }),
                    q.end());
            draft.q.push_back(std::move(q));
        }
        draft.tokens.push_back(ids[predecessor]);
        if (options.ends && options.ends(ids[predecessor])) {
            break;
        }
    }
    return draft;
}

}  // namespace dflash2
