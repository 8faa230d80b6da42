#include "lattice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dflash2 {

Draft walk(const Lattice & lattice, const WalkOptions & options, Random & random) {
    const int32_t n_cand      = lattice.n_cand;
    const bool    greedy      = options.temperature == 0.0f;
    const float   temperature = greedy ? 1.0f : options.temperature;
    Draft         draft;
    int32_t       predecessor = 0;
    for (int32_t i = 0; i < std::min(options.depth, lattice.n_slots); ++i) {
        const Token * ids = lattice.ids.data() + (size_t) i * n_cand;
        const float * row = lattice.scores.data() + ((size_t) i * n_cand + predecessor) * n_cand;
        SlotScores    slot{ { ids, ids + n_cand }, { row, row + n_cand }, std::vector<float>(n_cand, 0.0f) };
        for (float & score : slot.scores) {
            score = std::isnan(score) ? -INFINITY : std::min(score, std::numeric_limits<float>::max());
        }
        if (options.mask) {
            options.mask(draft.tokens, ids, slot.scores.data(), n_cand);
        }
        const std::vector<float> p = probabilities(slot, {}, temperature);
        if (p.empty()) {
            break;
        }
        draft.confidence.push_back(*std::max_element(p.begin(), p.end()));
        if (options.extend && !options.extend(draft.confidence)) {
            break;
        }
        if (greedy) {
            predecessor = (int32_t) (std::max_element(slot.scores.begin(), slot.scores.end()) - slot.scores.begin());
        } else {
            if (options.text) {
                slot.repeats =
                    count_repeats(*options.text, i > 0 ? draft.tokens.back() : options.text->back(), slot.ids);
            }
            const std::vector<float> shaped = probabilities(slot, options.proposal, temperature);
            Law                      q;
            for (int32_t c = 0; c < n_cand; ++c) {
                q.push_back({ ids[c], shaped[c] });
            }
            predecessor = (int32_t) draw_index(q, random);
            q.erase(std::remove_if(q.begin(), q.end(), [](const Outcome & outcome) { return outcome.p == 0; }),
                    q.end());
            draft.q.push_back(std::move(q));
            draft.slots.push_back(std::move(slot));
        }
        draft.tokens.push_back(ids[predecessor]);
        if (options.ends && options.ends(ids[predecessor])) {
            break;
        }
    }
    return draft;
}

}  // namespace dflash2
