#include "dflash2/stats.h"

#include <algorithm>

namespace dflash2 {

namespace {

double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

}  // namespace

double Stats::mean_acceptance_length() const {
    return verify_steps > 0 ? 1 + ratio((double) accepted_tokens, (double) verify_steps) : 0;
}

double Stats::acceptance_rate() const {
    return ratio((double) accepted_tokens, (double) draft_tokens);
}

double Stats::prompt_tps() const {
    return ratio((double) (prompt_tokens - cached_tokens), prompt_seconds);
}

double Stats::generation_tps() const {
    return ratio((double) generated_tokens, generation_seconds);
}

void Stats::record_cycle(int32_t n_draft, int32_t n_accepted) {
    verify_steps += 1;
    draft_tokens += n_draft;
    accepted_tokens += n_accepted;

    const auto depth = (size_t) n_draft;
    depth_histogram.resize(std::max(depth_histogram.size(), depth + 1));
    depth_histogram[depth] += 1;
    accepted_per_position.resize(std::max(accepted_per_position.size(), depth));
    for (int32_t i = 0; i < n_accepted; ++i) {
        accepted_per_position[i] += 1;
    }
}

}  // namespace dflash2
