#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash2 {

// Counts and times of one request, or of an engine since its last reset. Times are seconds of wall clock; in a request
// decoded together with others each counts the whole time of the shared decode, in an engine's total it counts once.
struct Stats {
    int64_t prompt_tokens    = 0;
    int64_t cached_tokens    = 0;  // of prompt_tokens: found in the cache, not evaluated again
    int64_t generated_tokens = 0;
    int64_t verify_steps     = 0;  // target passes after the prompt, those without a draft included
    int64_t draft_tokens     = 0;  // tokens given to the target to verify
    int64_t accepted_tokens  = 0;  // of draft_tokens

    std::vector<int64_t> accepted_per_position;  // [i]: cycles in which draft token i was accepted
    std::vector<int64_t> depth_histogram;        // [n]: cycles that verified n draft tokens

    std::string verify_rule;  // "match", "reject", "block"; "none" without a drafter; "mixed" in a total of several
    std::string fused_ops;    // "fused", "composed", "fused but for score", "upstream"; "none" without a drafter

    // What passes cost on this machine, as the engine has measured: (rows of the decode, ms), in a total only.
    std::vector<std::pair<int32_t, double>> verify_ms;
    std::vector<std::pair<int32_t, double>> draft_ms;

    double prompt_seconds     = 0;
    double draft_seconds      = 0;
    double inject_seconds     = 0;
    double verify_seconds     = 0;
    double sample_seconds     = 0;  // walks and verification
    double generation_seconds = 0;  // from the end of the prompt to the last token

    // 1 + accepted / verify steps, as llama-server and vLLM count it: the bonus token is included
    double mean_acceptance_length() const;
    // accepted / drafted: the bonus token is not included
    double acceptance_rate() const;
    double prompt_tps() const;
    double generation_tps() const;

    // Counts a target pass that verified n_draft tokens and accepted the first n_accepted of them.
    void record_cycle(int32_t n_draft, int32_t n_accepted);
};

}  // namespace dflash2
