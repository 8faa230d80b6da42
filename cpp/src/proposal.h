#pragma once

#include "law.h"

#include <array>
#include <vector>

namespace dflash2 {

// One slot as the walk meets it. All: [n_cand]
struct SlotScores {
    std::vector<Token> ids;
    std::vector<float> scores;   // after the predecessor on the path; no NaN, none above the greatest float
    std::vector<float> repeats;  // log(1 + how often the candidate has followed that predecessor in the text)
};

// [n_cand] the last. text: what the block continues, prompt and answer. before: the predecessor
std::vector<float> count_repeats(const std::vector<Token> & text, Token before, const std::vector<Token> & ids);

// How the scores of a slot become the law q that its token is drawn from:
//
//   q = softmax(sharpness * (scores + repetition * repeats) / temperature)
//
// A draft is kept with probability sum min(p, q). Where the target is sure of itself, a q sharper than the selector's
// softmax keeps more, up to the greedy draft; and a small drafter does not see what the text has said before.
struct Proposal {
    float sharpness  = 1;
    float repetition = 0;
};

// q, [n_cand]; empty when no score is above -inf
std::vector<float> probabilities(const SlotScores & slot, const Proposal & proposal, float temperature);

// Finds the proposal that fits the text of one sequence. At a judged slot p is known, and so is what each proposal would
// have kept there, whatever was drawn: the best one is that of the greatest sum, the past fading.
//
// Exactness: the rules give the law p for any q that is settled before the draw from it. best() is a function of cycles
// that are over, the same for all slots of a block; what it learned of tokens and coins in them is past, as the text is.
// Only the draws of the block to come must not reach it: ask for it before the walk, record() after the verdict. Each
// sequence has one of its own, so that no other request has a part in what a seed gives.
class ProposalLearner {
public:
    ProposalLearner();

    Proposal best() const;

    // A slot judged by the law p of the target, at the request's temperature (> 0)
    void record(const SlotScores & slot, const Law & p, float temperature);

private:
    static constexpr size_t n_proposals = 12;

    std::array<double, n_proposals> kept_{};
};

}  // namespace dflash2
