#pragma once

#include "dflash2/engine.h"

#include <vector>

namespace dflash2 {

// The greedy path: from the anchor on, the best-scored candidate of each slot given the one taken before it. Equal
// scores: the first candidate. NaN counts as -inf, and a slot with nothing else ends the path. At most `depth` tokens.
// Not the jointly best path: the selector was trained for this walk.
std::vector<Token> greedy_walk(const Lattice & lattice, int32_t depth);

}  // namespace dflash2
