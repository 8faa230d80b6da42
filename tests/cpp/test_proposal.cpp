#include "../../cpp/src/proposal.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

using namespace dflash2;

namespace {

bool close(double a, double b) {
    return std::abs(a - b) <= 1e-6;
}

SlotScores random_slot(std::mt19937 & random, float spread) {
    std::normal_distribution<float> normal(0, spread);
    SlotScores                      slot;
    for (Token c = 0; c < 16; ++c) {
        slot.ids.push_back(100 + 1024 * c + (Token) (random() % 1024));  // some fall on the same bit of a filter
        slot.scores.push_back(normal(random));
        slot.repeats.push_back(random() % 3 == 0 ? std::log1p((float) (random() % 5)) : 0.0f);
    }
    return slot;
}

// The definition, in double and without the usual shift by the maximum
std::vector<double> expected(const SlotScores & slot, double sharpness, double repetition, double temperature) {
    std::vector<double> weights;
    double              sum = 0;
    for (size_t c = 0; c < slot.ids.size(); ++c) {
        weights.push_back(std::exp(sharpness * (slot.scores[c] + repetition * slot.repeats[c]) / temperature));
        sum += weights.back();
    }
    for (double & weight : weights) {
        weight /= sum;
    }
    return weights;
}

double kept(const std::vector<double> & p, const std::vector<double> & q) {
    double sum = 0;
    for (size_t c = 0; c < p.size(); ++c) {
        sum += p[c] < q[c] ? p[c] : q[c];
    }
    return sum;
}

Law law_of(const SlotScores & slot, const std::vector<double> & p) {
    Law law;
    for (size_t c = 0; c < p.size(); ++c) {
        law.push_back({ (Token) (50000 + c), 0.0f });  // not a candidate
        law.push_back({ slot.ids[c], (float) p[c] });
    }
    return law;
}

void test_the_law_of_a_proposal() {
    std::mt19937 random(1);
    for (int32_t trial = 0; trial < 100; ++trial) {
        SlotScores slot = random_slot(random, 2);
        if (trial % 2 == 0) {
            slot.scores[trial % 16] = -INFINITY;
        }
        for (const Proposal & proposal : { Proposal{}, Proposal{ 2.5f, 0 }, Proposal{ 0.6f, 1.5f } }) {
            const auto q    = probabilities(slot, proposal, 0.8f);
            const auto want = expected(slot, proposal.sharpness, proposal.repetition, 0.8f);
            for (size_t c = 0; c < q.size(); ++c) {
                CHECK(close(q[c], want[c]));
            }
        }
    }
    SlotScores none = random_slot(random, 2);
    std::fill(none.scores.begin(), none.scores.end(), -INFINITY);
    CHECK(probabilities(none, { 1.2f, 1.5f }, 1.0f).empty());
}

void test_repeats_are_counted() {
    std::mt19937       random(2);
    std::vector<Token> text;
    for (int32_t i = 0; i < 300; ++i) {
        text.push_back((Token) (random() % 6));
    }
    std::map<std::pair<Token, Token>, int32_t> count;
    for (size_t i = 1; i < text.size(); ++i) {
        count[{ text[i - 1], text[i] }] += 1;
    }
    for (Token before = 0; before < 8; ++before) {
        const auto repeats = count_repeats(text, before, { 3, 0, 7 });
        CHECK(close(repeats[0], std::log(1.0 + count[{ before, 3 }])));
        CHECK(close(repeats[1], std::log(1.0 + count[{ before, 0 }])));
        CHECK(repeats[2] == 0);
    }
    CHECK((count_repeats({ 3 }, 3, { 3 }) == std::vector<float>{ 0.0f }));
    CHECK((count_repeats({}, 3, { 3 }) == std::vector<float>{ 0.0f }));
}

void test_probabilities_of_a_few_tokens() {
    std::mt19937     random(3);
    const SlotScores slot = random_slot(random, 1);
    const auto       p    = expected(slot, 1, 0, 1);
    const auto       got  = probabilities(law_of(slot, p), slot.ids);
    for (size_t c = 0; c < got.size(); ++c) {
        CHECK(close(got[c], p[c]));
    }
    CHECK((probabilities(Law{}, slot.ids) == std::vector<float>(16, 0.0f)));
}

// A target that follows the selector's scores in some way, and what the learner makes of it
struct Stream {
    double  sharpness, repetition;  // of the target
    int32_t n_slots = 400;

    // Mean kept per slot by the learner from the draws' point of view, by one proposal, and by all that could be known
    double learned = 0, start = 0, plain = 0;

    Proposal run(uint32_t seed, ProposalLearner & learner, float temperature) {
        std::mt19937   random(seed);
        const Proposal first = ProposalLearner().best();
        learned = start = plain = 0;
        for (int32_t i = 0; i < n_slots; ++i) {
            const SlotScores slot = random_slot(random, 1.5f);
            const auto       p    = expected(slot, sharpness, repetition, temperature);
            const Proposal   best = learner.best();
            learned += kept(p, expected(slot, best.sharpness, best.repetition, temperature)) / n_slots;
            start += kept(p, expected(slot, first.sharpness, first.repetition, temperature)) / n_slots;
            plain += kept(p, expected(slot, 1, 0, temperature)) / n_slots;
            learner.record(slot, law_of(slot, p), temperature);
        }
        return learner.best();
    }
};

void test_the_learner_finds_what_the_target_does() {
    for (const float temperature : { 0.5f, 1.0f }) {
        for (const Stream & target :
             { Stream{ 1, 0 }, Stream{ 3, 0 }, Stream{ 0.7, 0 }, Stream{ 1, 1.5 }, Stream{ 3, 1.5 } }) {
            Stream          stream = target;
            ProposalLearner learner;
            const Proposal  best = stream.run(4, learner, temperature);
            CHECK(close(best.sharpness, target.sharpness) && close(best.repetition, target.repetition));
            CHECK(stream.learned >= stream.start - 0.005 && stream.learned >= stream.plain - 0.02);
            CHECK(stream.learned >= 0.97);  // all that is kept but for the first slots
        }
    }
}

void test_the_learner_follows_a_change() {
    ProposalLearner learner;
    Stream          sharp{ 3, 0 }, flat{ 0.7, 1.5 };
    sharp.run(5, learner, 1);
    const Proposal best = flat.run(6, learner, 1);
    CHECK(close(best.sharpness, 0.7) && close(best.repetition, 1.5));
}

// Few slots tell little: a sequence goes on as it started
void test_a_few_slots_change_nothing() {
    ProposalLearner learner;
    std::mt19937    random(7);
    const Proposal  first = learner.best();
    for (int32_t i = 0; i < 2; ++i) {
        const SlotScores slot = random_slot(random, 1.5f);
        learner.record(slot, law_of(slot, expected(slot, 1, 0, 1)), 1);
    }
    CHECK(learner.best().sharpness == first.sharpness && learner.best().repetition == first.repetition);
}

}  // namespace

int main() {
    test_the_law_of_a_proposal();
    test_repeats_are_counted();
    test_probabilities_of_a_few_tokens();
    test_the_learner_finds_what_the_target_does();
    test_the_learner_follows_a_change();
    test_a_few_slots_change_nothing();
}
