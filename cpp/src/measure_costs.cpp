#include "measure_costs.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

namespace {

constexpr double slow   = 0.1;  // seconds
constexpr int    n_runs = 3;    // the first of a width also plans its graph

// Seconds of the fastest of some passes
template <typename Pass>
double fastest(const Pass & pass) {
    double best = INFINITY;
    for (int run = 0; run < n_runs && (run == 0 || best < slow); ++run) {
        const int64_t start = ggml_time_us();
        pass();
        best = std::min(best, 1e-6 * (double) (ggml_time_us() - start));
    }
    return best;
}

}  // namespace

void measure_costs(Target & target, Drafter & drafter, int32_t max_depth, DepthPolicy & policy) {
    const int32_t widest = max_depth + 1;
    for (int32_t rows = 1;; rows = std::min(2 * rows, widest)) {
        const double seconds = fastest([&] {
            common_batch batch(target.context());
            for (int32_t i = 0; i < rows; ++i) {
                batch.add(0, i, 0, true);
            }
            target.decode(batch);
            llama_synchronize(target.context());
            target.trim(0, 0);
        });
        policy.record_verify(rows, seconds);
        if (seconds > slow || rows == widest) {
            break;
        }
    }
    target.clear();
    for (const int32_t rows : { 2, widest }) {
        policy.record_draft(rows, fastest([&] { drafter.draft({ { 0, 0, drafter.info().mask_token } }, rows - 1); }));
    }
}

}  // namespace dflash2
