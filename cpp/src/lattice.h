#pragma once

#include "dflash2/engine.h"
#include "law.h"
#include "proposal.h"

#include <functional>
#include <vector>

namespace dflash2 {

// A path through a lattice: the tokens proposed for the slots after the anchor.
// tokens:     ids, from the first slot on
// confidence: the greatest probability of softmax(scores / temperature) at each of their slots, and at the slot that was
//             not proposed if one was asked for
// q:          the law each token was drawn from; empty after a greedy walk
// slots:      what each q was made of
struct Draft {
    std::vector<Token> tokens;
    std::vector<float> confidence;
    std::vector<Law>   q;

    std::vector<SlotScores> slots = {};
};

// Asked before each slot, the last of `confidence`: whether to propose it. confidence: the greatest probability at each
// slot, given the path before it. Exact sampling rests on it: the answer may depend on that path and on these numbers,
// never on what will be drawn.
using Extend = std::function<bool(const std::vector<float> & confidence)>;

// Sets the scores of candidates that may not follow `path` to -inf. ids, scores: [n_cand]
using Mask = std::function<void(const std::vector<Token> & path, const Token * ids, float * scores, int32_t n_cand)>;

// Whether an answer is complete with a token: nothing after it is of use
using Ends = std::function<bool(Token)>;

struct WalkOptions {
    int32_t depth       = 0;     // most tokens
    float   temperature = 0.0f;  // of the request; 0: greedy
    Extend  extend;              // empty: always
    Mask    mask;                // empty: none
    Ends    ends;                // empty: no token

    // Above temperature 0. text: what the block continues, the anchor last; may be null for a proposal without repetition
    Proposal                   proposal;
    const std::vector<Token> * text = nullptr;
};

// Temperature 0, the greedy path: from the anchor on, the best-scored candidate of each slot given the one taken before
// it. Not the jointly best path: the selector was trained for this walk. Equal scores: the first candidate.
// Above 0 every slot is drawn from the q of the proposal, one number of `random` each.
// NaN counts as -inf, and a slot with nothing else ends the path; so does a token that ends the answer. `random` is not
// used when greedy.
Draft walk(const Lattice & lattice, const WalkOptions & options, Random & random);

}  // namespace dflash2
