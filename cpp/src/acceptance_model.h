#pragma once

#include <cstdint>
#include <vector>

namespace dflash2 {

// A Gaussian belief about one term of a log-odds.
struct Belief {
    double mean;
    double variance;
};

// What is known of one sequence beyond the shared prior: how much easier (> 0) or harder its text is to draft than
// others', in log-odds. A new sequence starts from nothing. Copied freely.
struct SequenceAcceptance {
    Belief ease  = { 0, 0.3 };
    double drift = 0;  // recent outcomes that came better (> 0) or worse than expected, in standard deviations
};

// The chance that slot j is accepted given that the slots before it were:
//
//   logit P = quality + position[j] + ease                       before the block is drafted
//   logit P' = logit P + offset + slope * (logit c - centre[j])  once its confidence c is known
//
// c: the greatest probability of the selector's distribution at the slot. slope is learned, near 0 for a selector whose
// confidence says nothing, and centre is the mean of logit c, so a selector that is too sure of itself does no harm.
// Each term is learned by a Kalman filter on the logistic likelihood, as if independent of the others, and forgotten
// slowly.
class AcceptanceModel {
public:
    explicit AcceptanceModel(int32_t max_depth);

    double chance(const SequenceAcceptance & sequence, int32_t slot) const;
    double chance(const SequenceAcceptance & sequence, int32_t slot, float confidence) const;

    // One verified block. confidences: of its slots, at least n_proposed; one more is that of the slot at which the walk
    // stopped. n_accepted <= n_proposed; slots after the first rejection teach nothing
    void record(SequenceAcceptance &       sequence,
                const std::vector<float> & confidences,
                int32_t                    n_proposed,
                int32_t                    n_accepted);

    // A cycle without any draft: what was known grows old
    void wait();

private:
    struct Mean {
        double  value  = 0;
        int32_t n_seen = 0;
    };

    double logit(const SequenceAcceptance & sequence, int32_t slot) const;
    double surprise(int32_t slot, float confidence) const;
    void   learn(SequenceAcceptance & sequence, int32_t slot, double outcome);
    void   learn_confidence(double base, double surprise, bool accepted);

    Belief              quality_;
    std::vector<Belief> position_;
    Belief              offset_;
    Belief              slope_;
    std::vector<Mean>   centre_;
};

}  // namespace dflash2
