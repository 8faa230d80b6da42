#include "check.h"
#include "dflash2/stats.h"

#include <cmath>

using dflash2::Stats;

namespace {

void test_cycles_add_up() {
    Stats stats;
    stats.record_cycle(7, 3);
    stats.record_cycle(7, 0);
    stats.record_cycle(0, 0);
    stats.record_cycle(2, 2);

    CHECK(stats.verify_steps == 4);
    CHECK(stats.draft_tokens == 16);
    CHECK(stats.accepted_tokens == 5);
    CHECK((stats.accepted_per_position == std::vector<int64_t>{ 2, 2, 1, 0, 0, 0, 0 }));
    CHECK((stats.depth_histogram == std::vector<int64_t>{ 1, 0, 1, 0, 0, 0, 0, 2 }));
    CHECK(std::fabs(stats.mean_acceptance_length() - 2.25) < 1e-12);
    CHECK(std::fabs(stats.acceptance_rate() - 5.0 / 16) < 1e-12);
}

void test_nothing_is_divided_by_zero() {
    const Stats stats;
    CHECK(stats.mean_acceptance_length() == 0);
    CHECK(stats.acceptance_rate() == 0);
    CHECK(stats.prompt_tps() == 0);
    CHECK(stats.generation_tps() == 0);
}

void test_rates_leave_cached_tokens_out() {
    Stats stats;
    stats.prompt_tokens      = 100;
    stats.cached_tokens      = 60;
    stats.prompt_seconds     = 2;
    stats.generated_tokens   = 30;
    stats.generation_seconds = 1.5;
    CHECK(stats.prompt_tps() == 20);
    CHECK(stats.generation_tps() == 20);
}

}  // namespace

int main() {
    test_cycles_add_up();
    test_nothing_is_divided_by_zero();
    test_rates_leave_cached_tokens_out();
}
