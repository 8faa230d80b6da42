#include "logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace dflash2 {

TokenLogprobs row_logprobs(const Target & target, int32_t row, Token token, int32_t n_top) {
    const float * logits  = target.logits(row);
    const int32_t n_vocab = target.n_vocab();

    const float largest = *std::max_element(logits, logits + n_vocab);
    double      sum     = 0;
    for (int32_t i = 0; i < n_vocab; ++i) {
        sum += std::exp((double) logits[i] - largest);
    }
    const double log_sum = largest + std::log(sum);

    std::vector<Token> order(n_vocab);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + n_top, order.end(),
                      [&](Token a, Token b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });

    TokenLogprobs result;
    result.token   = token;
    result.logprob = (float) (logits[token] - log_sum);
    for (int32_t i = 0; i < n_top; ++i) {
        result.top.emplace_back(order[i], (float) (logits[order[i]] - log_sum));
    }
    return result;
}

}  // namespace dflash2
