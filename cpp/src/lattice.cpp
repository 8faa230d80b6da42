#include "lattice.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

std::vector<Token> greedy_walk(const Lattice & lattice, int32_t depth) {
    const int32_t      n_cand = lattice.n_cand;
    std::vector<Token> path;
    int32_t            predecessor = 0;
    for (int32_t slot = 0; slot < std::min(depth, lattice.n_slots); ++slot) {
        const float * row  = lattice.scores.data() + ((size_t) slot * n_cand + predecessor) * n_cand;
        int32_t       best = -1;
        for (int32_t c = 0; c < n_cand; ++c) {
            if (row[c] > (best < 0 ? -INFINITY : row[best])) {
                best = c;
            }
        }
        if (best < 0) {
            break;
        }
        path.push_back(lattice.ids[(size_t) slot * n_cand + best]);
        predecessor = best;
    }
    return path;
}

}  // namespace dflash2
