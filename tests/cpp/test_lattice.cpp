#include "../../cpp/src/lattice.h"

#include "check.h"

#include <cmath>

using namespace dflash2;

namespace {

using Path = std::vector<Token>;

// Golden vector 4a of the DFlash 2 specification: the second slot is scored under the candidate taken at the first
const Lattice golden = { 2, 2, { 3, 1, 4, 2 }, { 3.0f, 2.5f, 3.0f, 2.5f, 1.5f, 2.2f, 0.0f, 0.2f } };

bool close(double a, double b, double tolerance = 1e-5) {
    return std::abs(a - b) <= tolerance;
}

Path greedy_walk(const Lattice & lattice, int32_t depth) {
    WalkOptions options;
    options.depth = depth;
    Random      random(0, Stream::walk);
    const Draft draft = walk(lattice, options, random);
    CHECK(draft.q.empty());
    CHECK(draft.confidence.size() == draft.tokens.size());
    // the walk took no number
    Random untouched(0, Stream::walk);
    CHECK(random.uniform() == untouched.uniform());
    return draft.tokens;
}

WalkOptions sampled(float temperature, int32_t depth = 9) {
    WalkOptions options;
    options.depth       = depth;
    options.temperature = temperature;
    return options;
}

void test_walk_follows_its_own_path() {
    CHECK((greedy_walk(golden, 2) == Path{ 3, 2 }));
    CHECK((greedy_walk(golden, 1) == Path{ 3 }));
    CHECK((greedy_walk(golden, 0).empty()));
    CHECK((greedy_walk(golden, 9) == Path{ 3, 2 }));
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

    Random      random(0, Stream::walk);
    const Draft draft = walk(some, sampled(1.0f), random);
    CHECK((draft.tokens == Path{ 8 }));
    CHECK(draft.q[0].size() == 1 && draft.q[0][0].p == 1);
}

void test_a_slot_without_scores_ends_the_path() {
    const Lattice lattice = { 2, 2, { 7, 8, 5, 6 }, { 1.0f, 0.0f, 0, 0, NAN, -INFINITY, NAN, NAN } };
    CHECK((greedy_walk(lattice, 2) == Path{ 7 }));
    Random random(0, Stream::walk);
    CHECK(walk(lattice, sampled(1.0f), random).tokens.size() == 1);
}

// Golden vector 4a, sampled with the uniform numbers 0.9, 0.3 and others: each slot takes one number of the stream and
// the first candidate whose cumulated probability exceeds it, and records the law under the predecessor it took
void test_sampled_walk() {
    struct Case {
        float  temperature;
        double q0, q1_after_3, q1_after_1;  // of the first candidate of each slot
    };
    bool seen[2][2] = {};
    for (const Case & c : { Case{ 1.0f, 0.622459, 0.331812, 0.450166 }, Case{ 0.5f, 0.731059, 0.197816, 0.401312 } }) {
        for (uint32_t seed = 0; seed < 1000; ++seed) {
            Random       random(seed, Stream::walk), numbers(seed, Stream::walk);
            const Draft  draft = walk(golden, sampled(c.temperature), random);
            const double u0 = numbers.uniform(), u1 = numbers.uniform();
            const bool   first  = u0 < c.q0;
            const double q1     = first ? c.q1_after_3 : c.q1_after_1;
            const bool   second = u1 < q1;
            CHECK((draft.tokens == Path{ first ? 3 : 1, second ? 4 : 2 }));
            CHECK(draft.q.size() == 2 && draft.q[0].size() == 2 && draft.q[1].size() == 2);
            CHECK(draft.q[0][0].token == 3 && close(draft.q[0][0].p, c.q0));
            CHECK(draft.q[0][1].token == 1 && close(draft.q[0][1].p, 1 - c.q0));
            CHECK(draft.q[1][0].token == 4 && close(draft.q[1][0].p, q1));
            CHECK(draft.q[1][1].token == 2 && close(draft.q[1][1].p, 1 - q1));
            CHECK(close(draft.confidence[0], c.q0) && close(draft.confidence[1], std::max(q1, 1 - q1)));
            CHECK(random.uniform() == numbers.uniform());
            seen[first][second] = true;
        }
    }
    CHECK(seen[0][0] && seen[0][1] && seen[1][0] && seen[1][1]);
}

void test_extreme_temperatures_and_scores() {
    Random random(1, Stream::walk);
    for (const float temperature : { 1e-30f, 1e-5f, 1e30f }) {
        for (const float best : { 1e30f, INFINITY }) {
            const Lattice lattice = { 1, 3, { 7, 8, 9 }, { 1.0f, best, -INFINITY, 0, 0, 0, 0, 0, 0 } };
            const Draft   draft   = walk(lattice, sampled(temperature), random);
            CHECK(draft.tokens.size() == 1 && draft.tokens[0] != 9);
            CHECK(close(mass(draft.q[0]), 1));
        }
    }
    const Draft cold = walk(golden, sampled(1e-5f), random);
    CHECK((cold.tokens == Path{ 3, 2 }));
    CHECK(cold.q[0].size() == 1 && cold.q[1].size() == 1);
}

void test_extend_ends_the_path_before_a_slot_is_drawn() {
    for (const float temperature : { 0.0f, 1.0f }) {
        Random      random(2, Stream::walk), numbers(2, Stream::walk);
        WalkOptions options = sampled(temperature);
        options.extend      = [](const std::vector<float> & confidence) {
            return confidence.size() < 2;
        };
        const Draft draft = walk(golden, options, random);
        CHECK(draft.tokens.size() == 1);
        CHECK(draft.confidence.size() == 2);
        if (temperature > 0) {
            CHECK(draft.q.size() == 1);
            numbers.uniform();
        }
        CHECK(random.uniform() == numbers.uniform());
    }
}

// What the mask forbids is not drawn, and q is that of the rest
void test_mask() {
    WalkOptions options = sampled(1.0f);
    options.mask        = [](const Path & path, const Token * ids, float * scores, int32_t n_cand) {
        for (int32_t c = 0; c < n_cand; ++c) {
            if (path.empty() ? ids[c] == 3 : ids[c] == path.back() + 3) {
                scores[c] = -INFINITY;
            }
        }
    };
    Random      random(3, Stream::walk);
    const Draft draft = walk(golden, options, random);
    CHECK((draft.tokens == Path{ 1, 2 }));
    for (const Law & q : draft.q) {
        CHECK(q.size() == 1 && q[0].p == 1);
    }
    options.temperature = 0;
    CHECK((walk(golden, options, random).tokens == Path{ 1, 2 }));
}

void test_a_token_that_ends_the_answer_ends_the_path() {
    for (const float temperature : { 0.0f, 1.0f }) {
        WalkOptions options = sampled(temperature);
        options.ends        = [](Token token) {
            return token == 3 || token == 1;
        };
        Random random(4, Stream::walk);
        CHECK(walk(golden, options, random).tokens.size() == 1);
    }
}

// Golden vector 4a again: at sharpness 2 the laws are those of half the temperature, and confidence stays where it was
void test_a_proposal_shapes_the_law() {
    WalkOptions options = sampled(1.0f);
    options.proposal    = { 2.0f, 0.0f };
    Random      random(6, Stream::walk);
    const Draft draft = walk(golden, options, random);
    CHECK(close(draft.q[0][0].p, 0.731059) && close(draft.q[1][0].p, draft.tokens[0] == 3 ? 0.197816 : 0.401312));
    CHECK(close(draft.confidence[0], 0.622459));
    CHECK(draft.slots.size() == 2 && draft.slots[0].ids == (Path{ 3, 1 }) && draft.slots[0].scores[1] == 2.5f);

    // 1 has followed the anchor 9 twice: e^3.0 against e^2.5 * 3
    const Path text    = { 9, 1, 9, 1, 0, 9 };
    options.proposal   = { 1.0f, 1.0f };
    options.text       = &text;
    const Draft repeat = walk(golden, options, random);
    CHECK(close(repeat.q[0][0].p, 1 / (1 + 3 * std::exp(-0.5))));
    CHECK(close(repeat.confidence[0], 0.622459));

    options.temperature = 0;
    options.proposal    = { 0.1f, 9.0f };
    CHECK((walk(golden, options, random).tokens == Path{ 3, 2 }));
}

void test_streams_differ() {
    Random walk(5, Stream::walk), accept(5, Stream::accept), residual(5, Stream::residual);
    for (int i = 0; i < 100; ++i) {
        const double a = walk.uniform(), b = accept.uniform(), c = residual.uniform();
        CHECK(a != b && b != c && a != c);
    }
}

}  // namespace

int main() {
    test_walk_follows_its_own_path();
    test_walk_is_not_the_jointly_best_path();
    test_equal_scores_take_the_first_candidate();
    test_nan_counts_as_minus_infinity();
    test_a_slot_without_scores_ends_the_path();
    test_sampled_walk();
    test_extreme_temperatures_and_scores();
    test_extend_ends_the_path_before_a_slot_is_drawn();
    test_mask();
    test_a_token_that_ends_the_answer_ends_the_path();
    test_a_proposal_shapes_the_law();
    test_streams_differ();
}
