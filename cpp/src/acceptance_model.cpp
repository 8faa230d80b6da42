#include "acceptance_model.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

namespace {

// Even chances and next to no weight: three rejections in a row are enough to call a drafter bad
constexpr Belief  new_quality   = { 0, 4 };
constexpr Belief  new_position  = { 0, 0.5 };
constexpr Belief  new_offset    = { 0, 0.1 };
constexpr Belief  new_slope     = { 0.3, 0.1 };
constexpr double  forgetting    = 0.0003;  // variance gained per slot: a memory of some hundred
constexpr double  waiting       = 0.02;    // variance gained per cycle without a draft
constexpr double  old_quality   = 2;       // variance up to which it grows
constexpr double  ease_change   = 0.001;   // of one sequence: about forty
constexpr double  new_text      = 0.7;     // variance gained when a sequence is no longer what it was
constexpr double  drift_memory  = 0.8;
constexpr double  most_drift    = 6;      // chance alone: some 1.7
constexpr double  limit         = 4.5;    // of log-odds: 99 %
constexpr float   least_doubt   = 1e-3f;  // of a confidence
constexpr int32_t centre_memory = 200;

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

void forget(Belief & belief, double change, double most) {
    belief.variance = std::min(belief.variance + change, std::max(most, belief.variance));
}

// One step for a term that enters the log-odds times `factor`. error: outcome - chance, information: that of the outcome
// over the variance of all terms together
void correct(Belief & belief, double factor, double error, double information, double scale) {
    const double gain = belief.variance * factor / scale;
    belief.mean += gain * error;
    belief.variance -= gain * factor * belief.variance * information;
}

}  // namespace

AcceptanceModel::AcceptanceModel(int32_t max_depth) :
    quality_(new_quality), position_(max_depth, new_position), offset_(new_offset), slope_(new_slope),
    centre_(max_depth) {}

double AcceptanceModel::logit(const SequenceAcceptance & sequence, int32_t slot) const {
    return std::clamp(quality_.mean + position_[slot].mean + sequence.ease.mean, -limit, limit);
}

// How far a confidence lies from the usual at this slot, in log-odds
double AcceptanceModel::surprise(int32_t slot, float confidence) const {
    if (centre_[slot].n_seen == 0 || !(confidence >= 0)) {
        return 0;
    }
    const double c = std::clamp(confidence, least_doubt, 1 - least_doubt);
    return std::log(c / (1 - c)) - centre_[slot].value;
}

double AcceptanceModel::chance(const SequenceAcceptance & sequence, int32_t slot) const {
    return sigmoid(logit(sequence, slot));
}

double AcceptanceModel::chance(const SequenceAcceptance & sequence, int32_t slot, float confidence) const {
    const double shift = offset_.mean + slope_.mean * surprise(slot, confidence);
    return sigmoid(std::clamp(logit(sequence, slot) + shift, -limit, limit));
}

void AcceptanceModel::learn(SequenceAcceptance & sequence, int32_t slot, double outcome) {
    Belief & position = position_[slot];
    forget(quality_, forgetting, new_quality.variance);
    forget(position, forgetting, new_position.variance);
    forget(sequence.ease, ease_change, new_text);

    const double chance      = sigmoid(logit(sequence, slot));
    const double error       = outcome - chance;
    const double information = chance * (1 - chance);
    const double scale       = 1 + information * (quality_.variance + position.variance + sequence.ease.variance);
    correct(quality_, 1, error, information, scale);
    correct(position, 1, error, information, scale);
    correct(sequence.ease, 1, error, information, scale);

    sequence.drift = drift_memory * sequence.drift + std::clamp(error / std::sqrt(information), -3.0, 3.0);
    if (std::fabs(sequence.drift) > most_drift) {
        sequence.drift = 0;
        sequence.ease.variance += new_text;
    }
}

void AcceptanceModel::wait() {
    forget(quality_, waiting, old_quality);
}

void AcceptanceModel::learn_confidence(double base, double surprise, bool accepted) {
    forget(offset_, forgetting, new_offset.variance);
    forget(slope_, forgetting, new_slope.variance);
    const double chance      = sigmoid(std::clamp(base + offset_.mean + slope_.mean * surprise, -limit, limit));
    const double error       = (accepted ? 1 : 0) - chance;
    const double information = chance * (1 - chance);
    const double scale       = 1 + information * (offset_.variance + slope_.variance * surprise * surprise);
    correct(offset_, 1, error, information, scale);
    correct(slope_, surprise, error, information, scale);
    slope_.mean = std::max(0.0, slope_.mean);
}

void AcceptanceModel::record(SequenceAcceptance &       sequence,
                             const std::vector<float> & confidences,
                             int32_t                    n_proposed,
                             int32_t                    n_accepted) {
    const auto n_slots = (int32_t) std::min(confidences.size(), position_.size());
    for (int32_t slot = 0; slot < n_slots && slot <= n_accepted; ++slot) {
        const float c = confidences[slot];
        if (slot < n_proposed) {
            learn_confidence(logit(sequence, slot), surprise(slot, c), slot < n_accepted);
            learn(sequence, slot, slot < n_accepted ? 1 : 0);
        } else {
            // refused for its confidence: left out, the averages would be those of the slots that looked good
            learn(sequence, slot, chance(sequence, slot, c));
        }
        Mean & centre        = centre_[slot];
        centre.n_seen        = std::min(centre.n_seen + 1, centre_memory);
        const double clamped = std::clamp(c, least_doubt, 1 - least_doubt);
        centre.value += (std::log(clamped / (1 - clamped)) - centre.value) / centre.n_seen;
    }
}

}  // namespace dflash2
