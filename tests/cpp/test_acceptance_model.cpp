#include "../../cpp/src/acceptance_model.h"
#include "check.h"

#include <cmath>
#include <random>

using dflash2::AcceptanceModel;
using dflash2::SequenceAcceptance;

namespace {

void test_a_bad_drafter_is_dropped_and_a_good_one_trusted_within_three_blocks() {
    AcceptanceModel    bad(7), good(7);
    SequenceAcceptance a, b;
    CHECK(bad.chance(a, 0) == 0.5);
    for (int32_t i = 0; i < 3; ++i) {
        bad.record(a, std::vector<float>(7, 0.5f), 7, 0);
        good.record(b, std::vector<float>(7, 0.5f), 7, 7);
    }
    CHECK(bad.chance(a, 0) < 0.15 && bad.chance(a, 6) < 0.25);
    CHECK(good.chance(b, 0) > 0.85 && good.chance(b, 6) > 0.85);
    CHECK(good.chance(SequenceAcceptance{}, 0) > 0.8);
}

void test_slots_after_the_first_rejection_teach_nothing() {
    AcceptanceModel    one(7), seven(7);
    SequenceAcceptance a, b;
    one.record(a, { 0.5f }, 1, 0);
    seven.record(b, std::vector<float>(7, 0.5f), 7, 0);
    for (int32_t slot = 0; slot < 7; ++slot) {
        CHECK(one.chance(a, slot) == seven.chance(b, slot));
    }
}

void test_positions_are_told_apart() {
    AcceptanceModel    model(7);
    SequenceAcceptance sequence;
    std::mt19937       random(1);
    for (int32_t i = 0; i < 400; ++i) {
        const bool first = std::uniform_real_distribution<>()(random) < 0.9;
        const bool both  = first && std::uniform_real_distribution<>()(random) < 0.3;
        model.record(sequence, { 0.5f, 0.5f }, 2, both ? 2 : first ? 1 : 0);
    }
    CHECK(model.chance(sequence, 0) > 0.8);
    CHECK(model.chance(sequence, 1) > 0.15 && model.chance(sequence, 1) < 0.45);
}

// The chance of a slot is drawn, and the confidence is a function of it.
template <typename Confidence>
AcceptanceModel trained(Confidence confidence) {
    AcceptanceModel    model(1);
    SequenceAcceptance sequence;
    std::mt19937       random(2);
    for (int32_t i = 0; i < 1000; ++i) {
        const double odds = 2 * std::normal_distribution<>()(random);
        const double p    = 1 / (1 + std::exp(-odds));
        const bool   hit  = std::uniform_real_distribution<>()(random) < p;
        model.record(sequence, { (float) confidence(p, std::uniform_real_distribution<>()(random)) }, 1, hit ? 1 : 0);
    }
    return model;
}

void test_confidence_is_calibrated() {
    const SequenceAcceptance sequence;
    const auto               honest = trained([](double p, double) { return p; });
    CHECK(honest.chance(sequence, 0, 0.9f) > 0.75);
    CHECK(honest.chance(sequence, 0, 0.1f) < 0.25);

    const auto sure = trained([](double p, double) { return 0.95 + 0.05 * p; });
    CHECK(sure.chance(sequence, 0, 0.955f) < 0.4);
    CHECK(sure.chance(sequence, 0, 0.998f) > 0.6);

    const auto useless = trained([](double, double coin) { return coin; });
    CHECK(std::fabs(useless.chance(sequence, 0, 0.9f) - useless.chance(sequence, 0, 0.1f)) < 0.2);

    const auto constant = trained([](double, double) { return 1.0; });
    CHECK(std::fabs(constant.chance(sequence, 0, 1.0f) - constant.chance(sequence, 0)) < 0.1);
    CHECK(std::isfinite(constant.chance(sequence, 0, NAN)) && std::isfinite(constant.chance(sequence, 0, 0.0f)));
}

// Slots of low confidence are refused: the average must stay that of all slots, else every plan is too wide
void test_refused_slots_count_in_the_average() {
    AcceptanceModel    model(1);
    SequenceAcceptance sequence;
    std::mt19937       random(3);
    for (int32_t i = 0; i < 2000; ++i) {
        const double p        = std::uniform_real_distribution<>()(random) < 0.5 ? 0.9 : 0.1;
        const bool   hit      = std::uniform_real_distribution<>()(random) < p;
        const int    proposed = i < 200 || p > 0.5 ? 1 : 0;
        model.record(sequence, { (float) p }, proposed, proposed == 1 && hit ? 1 : 0);
    }
    CHECK(model.chance(sequence, 0) > 0.3 && model.chance(sequence, 0) < 0.7);
}

void test_a_sequence_is_told_from_the_others() {
    AcceptanceModel    model(7);
    SequenceAcceptance easy, hard;
    std::mt19937       random(4);
    for (int32_t i = 0; i < 60; ++i) {
        const auto accepted = [&](double p) {
            int32_t n = 0;
            while (n < 4 && std::uniform_real_distribution<>()(random) < p) {
                ++n;
            }
            return n;
        };
        model.record(easy, std::vector<float>(4, 0.5f), 4, accepted(0.9));
        model.record(hard, std::vector<float>(4, 0.5f), 4, accepted(0.2));
    }
    CHECK(model.chance(easy, 0) > 0.8);
    CHECK(model.chance(hard, 0) < 0.35);
}

void test_a_change_of_text_is_followed_and_a_new_sequence_keeps_the_prior() {
    AcceptanceModel    model(7);
    SequenceAcceptance sequence;
    for (int32_t i = 0; i < 100; ++i) {
        model.record(sequence, std::vector<float>(4, 0.5f), 4, i % 5 == 4 ? 1 : 4);
    }
    CHECK(model.chance(sequence, 0) > 0.9);
    for (int32_t i = 0; i < 12; ++i) {
        model.record(sequence, std::vector<float>(4, 0.5f), 4, 0);
    }
    CHECK(model.chance(sequence, 0) < 0.35);
    CHECK(model.chance(SequenceAcceptance{}, 0) > model.chance(sequence, 0) + 0.2);
}

}  // namespace

int main() {
    test_a_bad_drafter_is_dropped_and_a_good_one_trusted_within_three_blocks();
    test_slots_after_the_first_rejection_teach_nothing();
    test_positions_are_told_apart();
    test_confidence_is_calibrated();
    test_refused_slots_count_in_the_average();
    test_a_sequence_is_told_from_the_others();
    test_a_change_of_text_is_followed_and_a_new_sequence_keeps_the_prior();
}
