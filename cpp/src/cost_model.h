#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dflash2 {

// Seconds of one kind of pass as a function of its rows, learned from the passes that ran. Nothing is assumed of the
// curve but that more rows seldom cost less: kernels change with the number of rows, on a CPU at every few of them.
//
// The curve is a set of knots, one for each number of rows seen (above 16, for each 6 %). A knot that was not visited
// lately follows the others up and down, so that a longer context, heat or other load moves the whole curve; one that
// was keeps what was measured there, so that a dear kernel at one width is not blamed on all.
class CostCurve {
public:
    // Deaf to a single stall; follows a step within a few passes. seconds <= 0 or rows < 1: nothing is learned
    void record(int32_t rows, double seconds);

    bool empty() const { return knots_.empty(); }
    bool seen(int32_t rows) const { return nearest(rows) != none; }

    // Whether so many rows, or more, were seen
    bool reaches(int32_t rows) const;

    // Best guess, 0 while empty. Rows between two knots, or outside all, cost at least what the next fewer ones do
    double seconds(int32_t rows) const;

    // What the guess may come down to where it is no recent measurement of these rows, <= seconds(rows)
    double hoped_seconds(int32_t rows) const;

    // (rows, ms) of each knot, by rows
    std::vector<std::pair<int32_t, double>> ms_by_rows() const;

private:
    struct Knot {
        int32_t rows;
        double  level;    // log of seconds
        double  guessed;  // part of level that is not sure: it followed others, or the last visit was strange
        int32_t n_visits;
        int64_t visited;  // pass number
        bool    stalled;  // the last visit was so slow that it did not count
        double  seconds;  // exp(level): a plan asks for hundreds of them
    };

    static constexpr size_t none = SIZE_MAX;

    size_t nearest(int32_t rows) const;
    void   learn(int32_t rows, double seconds);

    std::vector<Knot> knots_;  // by rows
    int64_t           n_passes_ = 0;
};

// The parts of a cycle.
struct CostModel {
    CostCurve verify;  // target pass, by rows of all sequences
    CostCurve draft;   // draft pass, by rows of all blocks
    CostCurve inject;  // features into the drafter, by rows
    CostCurve host;    // the rest, by rows of the target pass

    // Target pass and the rest
    double verify_seconds(int32_t rows) const { return verify.seconds(rows) + host.seconds(rows); }

    // Before the first draft pass: a guess from the target pass
    double draft_seconds(int32_t rows) const;
};

}  // namespace dflash2
