#include "preselection.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

namespace {

constexpr int32_t lane_count  = 16;
constexpr int32_t chunk       = 256;   // logits whose maximum is compared before any single one is
constexpr size_t  max_touched = 2048;  // more of either and the whole row is no dearer
constexpr int32_t max_keep    = 1024;

// Independent lanes, so that compilers turn them into vector instructions. NaN never wins
float greatest(const float * values, int32_t n) {
    float   lanes[lane_count];
    int32_t i = 0;
    std::fill(lanes, lanes + lane_count, -INFINITY);
    for (; i + lane_count <= n; i += lane_count) {
        for (int32_t lane = 0; lane < lane_count; ++lane) {
            lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
        }
    }
    float best = -INFINITY;
    for (const float lane : lanes) {
        best = std::max(best, lane);
    }
    for (; i < n; ++i) {
        best = values[i] > best ? values[i] : best;
    }
    return best;
}

// How many of the likeliest tokens decide. 0: all
int32_t count_to_keep(const common_params_sampling & params) {
    const bool greedy = params.temp <= 0;
    if (params.mirostat != 0 || !params.reasoning_budget_start.empty()) {
        return 0;
    }
    for (const common_sampler_type type : params.samplers) {
        switch (type) {
        case COMMON_SAMPLER_TYPE_PENALTIES:
        case COMMON_SAMPLER_TYPE_DRY:
            break;
        case COMMON_SAMPLER_TYPE_TOP_N_SIGMA:
            if (params.top_n_sigma > 0) {
                return 0;
            }
            break;
        case COMMON_SAMPLER_TYPE_TOP_K:
            if (params.top_k > 0 && !greedy) {
                return params.top_k;
            }
            break;
        // these keep the likeliest token, which is all that a greedy chain needs
        case COMMON_SAMPLER_TYPE_TOP_P:
        case COMMON_SAMPLER_TYPE_MIN_P:
            if (!greedy) {
                return 0;
            }
            break;
        case COMMON_SAMPLER_TYPE_TYPICAL_P:
            if (params.typ_p < 1) {
                return 0;
            }
            break;
        case COMMON_SAMPLER_TYPE_XTC:
            if (params.xtc_probability > 0) {
                return 0;
            }
            break;
        case COMMON_SAMPLER_TYPE_TEMPERATURE:
            if (greedy && params.dynatemp_range <= 0) {
                return 1;
            }
            return 0;
        default:
            return 0;
        }
    }
    return 0;
}

}  // namespace

Preselection::Preselection(const common_params_sampling & params, const llama_vocab * vocab) :
    n_keep_(count_to_keep(params)) {
    if (n_keep_ == 0) {
        return;
    }
    for (const llama_logit_bias & bias : params.logit_bias) {
        biased_.push_back(bias.token);
    }
    int32_t             n_suppressed = 0;
    const llama_token * suppressed   = llama_vocab_get_suppress_tokens(vocab, &n_suppressed);
    biased_.insert(biased_.end(), suppressed, suppressed + n_suppressed);
    // of several biases on one token llama.cpp adds all on a whole row, but the first only on one that was cut
    std::sort(biased_.begin(), biased_.end());
    const bool repeated = std::adjacent_find(biased_.begin(), biased_.end()) != biased_.end();

    const bool penalties =
        params.penalty_repeat != 1.0f || params.penalty_freq != 0.0f || params.penalty_present != 0.0f;
    const int32_t n_penalized = penalties ? params.penalty_last_n : 0;
    const int32_t n_dry       = params.dry_multiplier != 0.0f ? params.dry_penalty_last_n : 0;
    const bool    endless     = n_penalized < 0 || n_dry < 0;  // negative: the whole context
    if (n_keep_ > max_keep || biased_.size() > max_touched || repeated || endless) {
        n_keep_ = 0;
        return;
    }
    n_window_ = (size_t) std::max(n_penalized, n_dry);
    touched_.assign(llama_vocab_n_tokens(vocab), 0);
}

void Preselection::accept(Token token) {
    if (n_keep_ == 0 || n_window_ == 0) {
        return;
    }
    recent_.push_back(token);
    if (recent_.size() >= 2 * n_window_) {
        recent_.erase(recent_.begin(), recent_.end() - (ptrdiff_t) n_window_);
    }
}

bool Preselection::select(const float * logits, int32_t n_vocab, std::vector<llama_token_data> & row) {
    const size_t n_recent = std::min(n_window_, recent_.size());
    if (n_keep_ == 0 || n_keep_ >= n_vocab || biased_.size() + n_recent > max_touched) {
        return false;
    }
    row.clear();
    bool       is_number = true;
    const auto touch     = [&](Token token) {
        if (!touched_[token]) {
            touched_[token] = 1;
            is_number &= !std::isnan(logits[token]);
            row.push_back({ token, logits[token], 0.0f });
        }
    };
    std::for_each(biased_.begin(), biased_.end(), touch);
    std::for_each(recent_.end() - (ptrdiff_t) n_recent, recent_.end(), touch);
    const size_t n_touched = row.size();

    // the best so far as a heap with the least of them on top, from `n_touched` on
    const auto above = [](const llama_token_data & a, const llama_token_data & b) {
        return a.logit > b.logit;
    };
    const auto first = [&] {
        return row.begin() + (ptrdiff_t) n_touched;
    };
    bool  tie   = false;  // whether one of those left out equals the least of those kept
    float least = -INFINITY;
    for (int32_t start = 0; start < n_vocab; start += chunk) {
        const int32_t end = std::min(start + chunk, n_vocab);
        if (row.size() == n_touched + n_keep_ && greatest(logits + start, end - start) < least) {
            continue;
        }
        for (Token token = start; token < end; ++token) {
            const float logit = logits[token];
            if (touched_[token] || !(logit >= least)) {
                continue;
            }
            if (row.size() < n_touched + n_keep_) {
                row.push_back({ token, logit, 0.0f });
                std::push_heap(first(), row.end(), above);
                least = row.size() == n_touched + n_keep_ ? first()->logit : -INFINITY;
            } else if (logit == least) {
                tie = true;
            } else {
                std::pop_heap(first(), row.end(), above);
                const float out = row.back().logit;
                row.back()      = { token, logit, 0.0f };
                std::push_heap(first(), row.end(), above);
                least = first()->logit;
                tie   = out == least;
            }
        }
    }
    for (size_t i = 0; i < n_touched; ++i) {
        touched_[row[i].id] = 0;
    }
    if (tie || !is_number || row.size() < n_touched + n_keep_) {  // fewer: the rest is NaN
        return false;
    }
    std::sort(row.begin(), row.end(), above);
    const bool equal = std::adjacent_find(row.begin(), row.end(), [](const auto & a, const auto & b) {
                           return a.logit == b.logit;
                       }) != row.end();
    std::sort(row.begin(), row.end(), [](const auto & a, const auto & b) { return a.id < b.id; });
    return !equal;
}

}  // namespace dflash2
