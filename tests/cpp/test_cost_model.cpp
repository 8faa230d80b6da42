#include "../../cpp/src/cost_model.h"
#include "check.h"

#include <cmath>

using dflash2::CostCurve;
using dflash2::CostModel;

namespace {

bool near(double a, double b, double share) {
    return std::fabs(a - b) <= share * b;
}

void record(CostCurve & curve, int32_t rows, double seconds, int32_t times) {
    for (int32_t i = 0; i < times; ++i) {
        curve.record(rows, seconds);
    }
}

void test_nothing_is_known_at_first() {
    CostCurve curve;
    CHECK(curve.empty());
    CHECK(!curve.reaches(1));
    CHECK(curve.seconds(4) == 0);
    CHECK(curve.hoped_seconds(4) == 0);
    CHECK(curve.ms_by_rows().empty());

    curve.record(0, 1);
    curve.record(3, 0);
    curve.record(3, -1);
    curve.record(3, NAN);
    CHECK(curve.empty());
}

void test_widths_that_were_not_seen_cost_at_least_what_fewer_rows_do() {
    CostCurve curve;
    record(curve, 1, 0.010, 2);
    CHECK(curve.seconds(8) > curve.seconds(2) && curve.seconds(2) > 0.010 && curve.seconds(8) < 0.080);

    record(curve, 4, 0.016, 2);
    record(curve, 8, 0.032, 2);
    CHECK(near(curve.seconds(2), 0.012, 1e-9));
    CHECK(near(curve.seconds(6), 0.024, 1e-9));
    for (int32_t rows = 1; rows < 300; ++rows) {
        CHECK(curve.seconds(rows + 1) >= curve.seconds(rows));
        CHECK(curve.seconds(rows) <= 0.004 * rows + 0.010);
        CHECK(curve.hoped_seconds(rows) <= curve.seconds(rows));
    }
    CHECK(curve.reaches(8) && !curve.reaches(9));
    CHECK((curve.ms_by_rows().size() == 3 && curve.ms_by_rows()[1].first == 4));
    CHECK(near(curve.ms_by_rows()[1].second, 16, 1e-9));
}

void test_narrow_widths_are_kept_apart_and_wide_ones_joined() {
    CostCurve curve;
    for (int32_t rows = 1; rows <= 264; ++rows) {
        curve.record(rows, 1e-3 * (10 + rows));
    }
    const auto ms = curve.ms_by_rows();
    CHECK(ms.size() < 60);
    for (int32_t i = 0; i < 16; ++i) {
        CHECK(ms[i].first == i + 1);
    }
    for (int32_t rows = 17; rows <= 264; ++rows) {
        CHECK(near(curve.seconds(rows), 1e-3 * (10 + rows), 0.05));
    }
}

void test_a_stall_does_not_count() {
    CostCurve curve;
    record(curve, 1, 0.010, 5);
    curve.record(1, 0.100);
    CHECK(near(curve.seconds(1), 0.010, 1e-9));
    record(curve, 1, 0.010, 1);
    curve.record(1, 0.100);
    CHECK(near(curve.seconds(1), 0.010, 1e-9));

    // two in a row: doubted, so that the width is tried again, and forgotten soon
    curve.record(1, 0.100);
    CHECK(curve.seconds(1) < 0.017);
    CHECK(near(curve.hoped_seconds(1), 0.010, 1e-2));
    record(curve, 1, 0.010, 2);
    CHECK(near(curve.seconds(1), 0.010, 0.1));
}

void test_a_stall_at_the_first_pass_of_a_width_is_found_out() {
    CostCurve curve;
    record(curve, 1, 0.010, 5);
    record(curve, 8, 0.012, 5);
    curve.record(4, 0.110);
    CHECK(curve.seconds(4) < 0.015);
    CHECK(near(curve.hoped_seconds(4), 0.011, 0.1));
    curve.record(4, 0.011);
    CHECK(near(curve.seconds(4), 0.011, 0.2));
}

void test_a_bad_moment_at_load_is_found_out_at_one_width_for_all() {
    CostCurve curve;
    for (const int32_t rows : { 2, 4, 8 }) {
        curve.record(rows, 1 + 0.01 * rows);
    }
    record(curve, 4, 0.010, 5);
    CHECK(near(curve.seconds(4), 0.010, 0.1));
    CHECK(curve.seconds(2) < 0.015 && curve.seconds(8) < 0.040);

    // what was measured twice stays what it is: kernels may be dear at one width
    CostCurve known;
    record(known, 8, 1, 2);
    known.record(4, 0.9);
    record(known, 4, 0.010, 5);
    CHECK(known.seconds(8) > 0.5);
}

void test_a_lasting_step_is_followed() {
    CostCurve curve;
    record(curve, 8, 0.010, 20);
    record(curve, 8, 0.030, 4);
    CHECK(near(curve.seconds(8), 0.030, 0.15));
    record(curve, 8, 0.010, 2);
    CHECK(near(curve.seconds(8), 0.010, 0.15));
}

void test_a_width_not_used_lately_follows_the_drift_of_the_others() {
    CostCurve curve;
    record(curve, 1, 0.010, 5);
    record(curve, 8, 0.020, 100);
    for (int32_t i = 0; i < 100; ++i) {
        curve.record(8, 0.020 * (1 + 0.01 * i));
    }
    CHECK(near(curve.seconds(8), 0.040, 0.1));
    CHECK(near(curve.seconds(1), 0.020, 0.15));
    CHECK(curve.hoped_seconds(1) < 0.011);
}

void test_a_dear_width_is_not_blamed_on_one_in_use() {
    CostCurve curve;
    for (int32_t i = 0; i < 50; ++i) {
        curve.record(1, 0.010);
        curve.record(8, 0.020);
    }
    for (int32_t i = 0; i < 8; ++i) {
        curve.record(1, 0.010);
        curve.record(8, 0.060);
    }
    CHECK(near(curve.seconds(8), 0.060, 0.15));
    CHECK(near(curve.seconds(1), 0.010, 0.1));
}

void test_an_old_measurement_is_doubted() {
    CostCurve curve;
    record(curve, 4, 0.030, 5);
    const double fresh = curve.hoped_seconds(4);
    CHECK(near(fresh, 0.030, 0.02));
    record(curve, 1, 0.010, 500);
    CHECK(near(curve.seconds(4), 0.030, 1e-6));
    CHECK(curve.hoped_seconds(4) < 0.9 * fresh);
}

void test_before_the_first_draft_pass_its_cost_is_guessed() {
    CostModel costs;
    CHECK(costs.draft_seconds(8) == 0);
    costs.verify.record(1, 0.010);
    CHECK(costs.draft_seconds(8) > 0 && costs.draft_seconds(8) < costs.verify.seconds(8));
    costs.draft.record(8, 0.001);
    CHECK(near(costs.draft_seconds(8), 0.001, 1e-9));
    costs.host.record(1, 0.002);
    CHECK(near(costs.verify_seconds(1), 0.012, 1e-9));
}

}  // namespace

int main() {
    test_nothing_is_known_at_first();
    test_widths_that_were_not_seen_cost_at_least_what_fewer_rows_do();
    test_narrow_widths_are_kept_apart_and_wide_ones_joined();
    test_a_stall_does_not_count();
    test_a_stall_at_the_first_pass_of_a_width_is_found_out();
    test_a_bad_moment_at_load_is_found_out_at_one_width_for_all();
    test_a_lasting_step_is_followed();
    test_a_width_not_used_lately_follows_the_drift_of_the_others();
    test_a_dear_width_is_not_blamed_on_one_in_use();
    test_an_old_measurement_is_doubted();
    test_before_the_first_draft_pass_its_cost_is_guessed();
}
