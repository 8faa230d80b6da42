#pragma once

#include "tiny_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace dflash2 {

// The first tokens of an answer; where it ends early, the token that ended it fills the rest.
constexpr int32_t n_vocab  = TinyVocabulary::first_filler;
constexpr int32_t n_answer = 4;
constexpr int32_t n_cells  = n_vocab * n_vocab * n_vocab * n_vocab;

using Answer = std::vector<llama_token>;  // [n_answer]

inline size_t cell(const Answer & answer) {
    size_t index = 0;
    for (const llama_token token : answer) {
        index = index * n_vocab + (size_t) token;
    }
    return index;
}

using AnswerLaw    = std::vector<double>;   // [n_cells]
using AnswerCounts = std::vector<int32_t>;  // [n_cells]

// How well counts fit a law.
struct Fit {
    double p_value    = 1;      // smallest of the chi-square tests, times their number
    double excess     = 0;      // total variation distance over its limit
    bool   impossible = false;  // whether something of probability 0 came

    // Right programs fail once in 500 000 configurations
    bool good() const { return !impossible && p_value > 1e-6 && excess < 1; }
};

namespace fit {

// Upper tail of chi-square by Wilson and Hilferty's cube root; within a factor of 5 at 1e-6 for one degree of freedom,
// closer for more.
inline double chi_square_tail(double statistic, double freedom) {
    const double variance = 2 / (9 * freedom);
    return 0.5 * std::erfc((std::cbrt(statistic / freedom) - (1 - variance)) / std::sqrt(2 * variance));
}

// Cells that expect less than 5 count as one.
inline double chi_square_test(const std::vector<double> & law, const std::vector<double> & counts, double n) {
    double statistic = 0, rare_expected = 0, rare_observed = 0, n_terms = 0;
    for (size_t i = 0; i < law.size(); ++i) {
        const double expected = n * law[i];
        if (expected < 5) {
            rare_expected += expected;
            rare_observed += counts[i];
        } else {
            statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
            n_terms += 1;
        }
    }
    if (rare_expected >= 5) {
        statistic += (rare_observed - rare_expected) * (rare_observed - rare_expected) / rare_expected;
        n_terms += 1;
    }
    return n_terms < 2 ? 1 : chi_square_tail(statistic, n_terms - 1);
}

// Mean of |X - np| for a binomial X: 2 k (1 - p) P(X = k) with k = floor(np) + 1 (De Moivre)
inline double mean_deviation(double p, double n) {
    if (p <= 0 || p >= 1) {
        return 0;
    }
    if (n * p < 1) {
        return 2 * n * p * std::exp(n * std::log1p(-p));
    }
    const double k = std::min(n, std::floor(n * p) + 1);
    return 2 * k * (1 - p) *
           std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) + k * std::log(p) +
                    (n - k) * std::log1p(-p));
}

// Sums out all tokens but `n_kept` from `first` on
template <typename T>
std::vector<double> marginal(const std::vector<T> & joint, int32_t first, int32_t n_kept) {
    size_t tail = 1, size = 1;
    for (int32_t i = first + n_kept; i < n_answer; ++i) {
        tail *= n_vocab;
    }
    for (int32_t i = 0; i < n_kept; ++i) {
        size *= n_vocab;
    }
    std::vector<double> sums(size);
    for (size_t i = 0; i < joint.size(); ++i) {
        sums[i / tail % size] += (double) joint[i];
    }
    return sums;
}

}  // namespace fit

// Chi-square tests of all runs of adjacent tokens, and the total variation distance of the whole answers. Its limit:
// each draw moves the distance by 1 / n at most, so that it exceeds its mean by sqrt(ln(10^6) / 2n) once in 10^6 times
// (McDiarmid).
inline Fit compare(const AnswerLaw & law, const AnswerCounts & counts) {
    double n = 0;
    for (const int32_t count : counts) {
        n += count;
    }
    Fit    result;
    double distance = 0, mean = 0, total = 0;
    for (size_t i = 0; i < law.size(); ++i) {
        distance += std::abs(counts[i] / n - law[i]) / 2;
        mean += fit::mean_deviation(law[i], n) / n / 2;
        total += law[i];
        result.impossible = result.impossible || (law[i] == 0 && counts[i] > 0);
    }
    CHECK(std::abs(total - 1) < 1e-5);
    result.excess = distance / (mean + std::sqrt(std::log(1e6) / (2 * n)));

    int32_t n_tests = 0;
    for (int32_t n_kept = 1; n_kept <= n_answer; ++n_kept) {
        for (int32_t first = 0; first + n_kept <= n_answer; ++first) {
            const double p =
                fit::chi_square_test(fit::marginal(law, first, n_kept), fit::marginal(counts, first, n_kept), n);
            result.p_value = std::min(result.p_value, p);
            n_tests += 1;
        }
    }
    result.p_value = std::min(1.0, result.p_value * n_tests);
    return result;
}

}  // namespace dflash2
