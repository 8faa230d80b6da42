#pragma once

#include "acceptance_model.h"
#include "cost_model.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash2 {

// A sequence that generates, as plan() sees it.
struct DepthRequest {
    SequenceAcceptance acceptance;
    int32_t            room;     // most draft tokens that can be of use, may be 0
    int32_t            backlog;  // rows of features to inject before this sequence can be drafted
};

// How far to draft in one cycle.
struct DepthPlan {
    // Per request: the most slots to propose; 0 leaves the sequence out of the draft pass. extend() may end it earlier
    std::vector<int32_t> depths;
    int32_t              width = 0;  // slots of the draft pass: the greatest of depths. 0: no draft pass

    enum class Reason {
        best,   // most expected tokens per second
        probe,  // drafting does not seem to pay: asks the drafter again
        cost,   // asks for the cost of a width that is not known, or not any more
    };

    Reason reason = Reason::best;

    // Of the cycle, if every sequence proposes the slots that count on average
    double expected_tokens  = 0;
    double expected_seconds = 0;

    // For extend() and record()
    std::vector<SequenceAcceptance> acceptance;
    double                          tokens_per_second = 0;  // of the best cycle known: the price of time
    int32_t                         expected_rows     = 0;  // of the target pass
    std::vector<int32_t>            expected_depths;        // slots that count on average, <= depths
    double                          least_reach = 1;        // chance to be of use, of the last slot that counts
    std::optional<double>           probe_price;            // of the cheapest probe, in cycles without a draft
};

// One cycle that ran.
struct DepthCycle {
    struct Pass {
        int32_t rows    = 0;  // 0: did not run
        double  seconds = 0;
    };

    struct Outcome {
        SequenceAcceptance * acceptance;  // of the sequence: updated
        std::vector<float> confidences;   // of each slot proposed, then that of the slot where the walk ended, if known
        int32_t            n_proposed = 0;
        int32_t            n_accepted = 0;
        // A sequence that ended within the block (end of text, stop string, max_tokens): what came after was not judged.
        // Give n_proposed = n_accepted then, so that it does not count as a rejection
    };

    Pass                 inject;            // features that were waiting
    Pass                 draft;             // rows: drafted sequences * (width + 1)
    Pass                 verify;            // rows: sum of 1 + proposed, or what equal_rows makes of it
    double               host_seconds = 0;  // everything else in the cycle
    std::vector<Outcome> outcomes;          // one per sequence, drafted or not
};

// Chooses how many slots each sequence drafts and verifies, so that the tokens per second of all together are most:
//
//   sum_i (1 + expected accepted_i) / (inject + draft + verify + host seconds)
//
// with costs and acceptance learned from the cycles that ran. Every new thing that is tried (the drafter while it does
// not pay, a width of unknown cost) is paid out of a budget: a little over one cycle at the start, and one percent of
// the time since for the drafter, half of one for widths; down to 0.4 of that while one trial after the other loses. So
// is drafting that pays by the model alone: while what the clock says it has lost exceeds the budget, nothing is drafted.
// Few sequences and many have budgets of their own.
//
// One policy lives as long as its engine; it holds no clock and no randomness. Only the record functions change it.
//
// Exactness: extend() looks at the past, at the path before the slot and at the slot's distribution, never at a token
// drawn at the slot or after it. What it lets through stays in the draft.
class DepthPolicy {
public:
    // max_depth: slots of the widest draft pass, >= 1. equal_rows: the target's pass has as many rows of each sequence as of
    // the one that proposes most
    explicit DepthPolicy(int32_t max_depth, bool equal_rows = false);

    DepthPlan plan(const std::vector<DepthRequest> & requests) const;

    // Whether request i of the plan proposes its slot s = confidences.size() - 1. confidences: the greatest probability
    // of the selector's distribution at each slot up to s, given the path before it. Ask for s = 0, 1, ... below
    // plan.depths[i], until the first no. Where rows are equal and several sequences run, all are yes: the rows are there
    bool extend(const DepthPlan & plan, size_t i, const std::vector<float> & confidences) const;

    // plan: what the cycle followed; null when the depth was not this policy's
    void record(const DepthCycle & cycle, const DepthPlan * plan);

    // Passes run for the sake of their time, at load. The fastest of two or three is better than the first
    void record_verify(int32_t rows, double seconds) { costs_.verify.record(rows, seconds); }
    void record_draft(int32_t rows, double seconds) { costs_.draft.record(rows, seconds); }
    void record_inject(int32_t rows, double seconds) { costs_.inject.record(rows, seconds); }

    // costs().verify.ms_by_rows() and so on
    const CostModel & costs() const { return costs_; }

private:
    struct Choice;
    class Evaluation;

    // Paces what is tried: after each time in vain twice as many cycles pass, and while trials lose, less is spent on them
    struct Pace {
        int32_t interval = 1;
        int32_t waited   = 0;
        int32_t n_lost   = 0;  // of the trials; one that pays makes half of them forgotten

        bool   due() const { return waited >= interval; }
        double share() const;  // of the budget
        void   tried(bool in_vain, bool lost);
    };

    bool probe(const Evaluation & evaluation, std::optional<double> price, const Choice & best, Choice & choice) const;
    bool explore(const Evaluation & evaluation, const Choice & best, Choice & choice) const;
    double row_seconds(int32_t from, int32_t to) const;
    double plain_seconds(int32_t n) const;

    // What may be lost with so many sequences: what drafting wins for one pays for no losses of four
    struct Budget {
        double  probe_credit;     // against never drafting, in cycles of that
        double  probe_price = 0;  // of the last plan that had one
        double  explore_credit;   // against the best known depths, in the same
        int32_t since_plain = 0;  // cycles since one without a draft
        Pace    probes;
        Pace    explorations;
    };

    static constexpr size_t n_budgets = 8;  // 1, 2, 3 to 4, 5 to 8 sequences, ...

    static size_t  budget_of(size_t n_sequences);
    const Budget & budget(size_t n_sequences) const { return budgets_[budget_of(n_sequences)]; }

    int32_t                       max_depth_;
    bool                          equal_rows_;
    CostModel                     costs_;
    AcceptanceModel               acceptance_;
    std::array<Budget, n_budgets> budgets_;
};

// One line for the debug log, such as "depth 3 2 0, width 3: 4.1 tokens in 23.5 ms"
std::string describe(const DepthPlan & plan);

}  // namespace dflash2
