#include "proposal.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

namespace {

// The first is where a sequence starts. Sharper than 3 is next to greedy
constexpr std::array<Proposal, 12> proposals = { {
    { 1.2f, 1.5f },
    { 0.7f, 1.5f },
    { 1.0f, 1.5f },
    { 1.5f, 1.5f },
    { 2.0f, 1.5f },
    { 3.0f, 1.5f },
    { 0.7f, 0.0f },
    { 1.0f, 0.0f },
    { 1.2f, 0.0f },
    { 1.5f, 0.0f },
    { 2.0f, 0.0f },
    { 3.0f, 0.0f },
} };

constexpr double head_start = 0.5;   // tokens by which another one must be better than the first
constexpr double memory     = 0.99;  // per slot: about a hundred

}  // namespace

std::vector<float> count_repeats(const std::vector<Token> & text, Token before, const std::vector<Token> & ids) {
    std::vector<float> counts(ids.size(), 0.0f);
    for (size_t i = 0; i + 1 < text.size(); ++i) {
        if (text[i] == before) {
            const auto it = std::find(ids.begin(), ids.end(), text[i + 1]);
            if (it != ids.end()) {
                counts[it - ids.begin()] += 1;
            }
        }
    }
    for (float & count : counts) {
        count = std::log1p(count);
    }
    return counts;
}

std::vector<float> probabilities(const SlotScores & slot, const Proposal & proposal, float temperature) {
    std::vector<float> p = slot.scores;
    if (proposal.repetition != 0) {
        for (size_t c = 0; c < p.size(); ++c) {
            p[c] += proposal.repetition * slot.repeats[c];
        }
    }
    temperature      = std::max(temperature, 1e-5f);  // less overflows
    const float best = *std::max_element(p.begin(), p.end());
    if (!(best > -INFINITY)) {
        return {};
    }
    double sum = 0;
    for (float & value : p) {
        value = std::exp((value - best) * proposal.sharpness / temperature);
        sum += value;
    }
    for (float & value : p) {
        value = (float) (value / sum);
    }
    return p;
}

ProposalLearner::ProposalLearner() {
    kept_[0] = head_start;
}

Proposal ProposalLearner::best() const {
    return proposals[std::max_element(kept_.begin(), kept_.end()) - kept_.begin()];
}

void ProposalLearner::record(const SlotScores & slot, const Law & p, float temperature) {
    const std::vector<float> target = probabilities(p, slot.ids);
    for (size_t i = 0; i < n_proposals; ++i) {
        const std::vector<float> q = probabilities(slot, proposals[i], temperature);
        kept_[i] *= memory;
        for (size_t c = 0; c < q.size(); ++c) {
            kept_[i] += std::min(q[c], target[c]);
        }
    }
}

}  // namespace dflash2
