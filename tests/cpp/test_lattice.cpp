#include "../../cpp/src/lattice.h"

#include "check.h"

#include <cmath>

using dflash2::greedy_walk;
using dflash2::Lattice;
using dflash2::Token;

namespace {

using Path = std::vector<Token>;

// Golden vector 4a of the DFlash 2 specification: the second slot is scored under the candidate taken at the first
void test_walk_follows_its_own_path() {
    const Lattice lattice = { 2, 2, { 3, 1, 4, 2 }, { 3.0f, 2.5f, 3.0f, 2.5f, 1.5f, 2.2f, 0.0f, 0.2f } };
    CHECK((greedy_walk(lattice, 2) == Path{ 3, 2 }));
    CHECK((greedy_walk(lattice, 1) == Path{ 3 }));
    CHECK((greedy_walk(lattice, 0).empty()));
    CHECK((greedy_walk(lattice, 9) == Path{ 3, 2 }));
}

// The jointly best path is (1, 2) with 2.5 + 9; the walk takes 3 first and never sees it
void test_walk_is_not_the_jointly_best_path() {
    const Lattice lattice = { 2, 2, { 3, 1, 4, 2 }, { 3.0f, 2.5f, 3.0f, 2.5f, 1.0f, 0.0f, 0.0f, 9.0f } };
    CHECK((greedy_walk(lattice, 2) == Path{ 3, 4 }));
}

void test_equal_scores_take_the_first_candidate() {
    const Lattice lattice = { 1, 3, { 7, 8, 9 }, { 1.0f, 2.0f, 2.0f, 0, 0, 0, 0, 0, 0 } };
    CHECK((greedy_walk(lattice, 1) == Path{ 8 }));
}

void test_nan_counts_as_minus_infinity() {
    const Lattice some = { 1, 2, { 7, 8 }, { NAN, -5.0f, 0, 0 } };
    CHECK((greedy_walk(some, 1) == Path{ 8 }));

    const Lattice all = { 2, 2, { 7, 8, 5, 6 }, { 1.0f, 0.0f, 0, 0, NAN, -INFINITY, 0, 0 } };
    CHECK((greedy_walk(all, 2) == Path{ 7 }));
}

}  // namespace

int main() {
    test_walk_follows_its_own_path();
    test_walk_is_not_the_jointly_best_path();
    test_equal_scores_take_the_first_candidate();
    test_nan_counts_as_minus_infinity();
}
