// The test of test_distribution.cpp has power: mistakes of the kind that one makes, each planted once, and what is right
// beside it.

#include "reference.h"
#include "speculation.h"

using namespace dflash2;

namespace {

constexpr int32_t n_answers = 50000;

const TinyVocabulary & vocabulary() {
    static const TinyVocabulary vocabulary;
    return vocabulary;
}

const TableTarget & target() {
    static const TableTarget target;
    return target;
}

Fit fit(const Chain & chain, Drafting drafting, const Speculation & how) {
    const Speculated result =
        speculate(chain, target(), table_drafter(target(), drafting), vocabulary().model(), how, n_answers);
    return compare(reference::law(chain, target(), vocabulary().model()), result.counts);
}

bool good(const Chain & chain, Drafting drafting, const Speculation & how) {
    return fit(chain, drafting, how).good();
}

const Chain plain = make_chain("plain", [](common_params_sampling &) {});

// How `reject` could go wrong
struct Mistakes {
    bool plain_residual = false;  // draws from p where p - q is due
    bool loose          = false;  // keeps a draft at equality, so with probability 0 too
    bool coarse_coin    = false;  // of 1024 values, 0 among them
    bool stale_history  = false;  // judges the block by the history before it
};

Judge flawed(const Mistakes & mistakes) {
    return [mistakes](Sampler & sampler, const Block & block, Randoms & randoms) {
        const std::vector<Token> & draft = block.draft.tokens;
        std::optional<Sampler>     before;
        Verdict                    verdict;
        if (mistakes.stale_history) {
            before = sampler.clone();
        }
        for (size_t i = 0; i <= draft.size(); ++i) {
            const Law p     = (before ? *before : sampler).law(block.logits((int32_t) i));
            Token     token = no_token;
            if (i == draft.size()) {
                token = draw(p, randoms.residual);
            } else {
                const Law & q     = block.draft.q[i];
                double      coin  = randoms.accept.uniform();
                coin              = mistakes.coarse_coin ? std::floor(coin * 1024) / 1024 : coin;
                const double mine = coin * probability(q, draft[i]), theirs = probability(p, draft[i]);
                token = draft[i];
                if (mistakes.loose ? mine > theirs : mine >= theirs) {
                    const Law rest = residual(p, q);
                    token          = draw(mistakes.plain_residual || rest.empty() ? p : rest, randoms.residual);
                }
            }
            verdict.tokens.push_back(token);
            sampler.accept(token);
            if (i == draft.size() || token != draft[i]) {
                break;
            }
            verdict.n_accepted += 1;
            if (block.ends(token)) {
                break;
            }
        }
        return verdict;
    };
}

void test_the_rule_without_mistakes() {
    Speculation how;
    how.judge = flawed({});
    CHECK(good(plain, Drafting::bad, how));
}

void test_residual_without_subtraction() {
    Mistakes mistakes;
    mistakes.plain_residual = true;
    Speculation how;
    how.judge = flawed(mistakes);
    CHECK(!good(plain, Drafting::good, how));
    CHECK(!good(plain, Drafting::bad, how));
}

void test_what_is_impossible_is_kept_at_equality() {
    const Chain chain = make_chain("", [](common_params_sampling & params) { params.top_k = 4; });
    Mistakes    mistakes;
    mistakes.coarse_coin = true;
    Speculation how;
    how.judge = flawed(mistakes);
    CHECK(good(chain, Drafting::adversarial, how));
    mistakes.loose = true;
    how.judge      = flawed(mistakes);
    CHECK(fit(chain, Drafting::adversarial, how).impossible);
}

void test_penalties_that_stand_still_in_a_block() {
    const Chain chain = make_chain("", [](common_params_sampling & params) { params.penalty_present = 1.0f; });
    Mistakes    mistakes;
    Speculation how;
    how.judge = flawed(mistakes);
    CHECK(good(chain, Drafting::good, how));
    mistakes.stale_history = true;
    how.judge              = flawed(mistakes);
    CHECK(!good(chain, Drafting::good, how));
}

// Every answer has streams of its own here, as requests with seeds 0, 1, 2 ... have
bool good_streams(Rule rule, void (*spoil)(Randoms & randoms, uint32_t seed)) {
    Speculation how;
    how.judge   = by(rule);
    how.randoms = [spoil](uint32_t seed) {
        Randoms randoms(seed);
        spoil(randoms, seed);
        return randoms;
    };
    return good(plain, Drafting::good, how);
}

void test_streams_that_are_one() {
    for (const Rule rule : { Rule::reject, Rule::block }) {
        CHECK(good_streams(rule, [](Randoms &, uint32_t) {}));
        CHECK(
            !good_streams(rule, [](Randoms & randoms, uint32_t seed) { randoms.accept = Random(seed, Stream::walk); }));
    }
    CHECK(!good_streams(Rule::reject,
                        [](Randoms & randoms, uint32_t seed) { randoms.residual = Random(seed, Stream::accept); }));
    CHECK(!good_streams(Rule::reject,
                        [](Randoms & randoms, uint32_t seed) { randoms.residual = Random(seed, Stream::walk); }));
}

// The q of another predecessor than the one on the path
void test_q_of_the_wrong_row() {
    for (const Rule rule : { Rule::reject, Rule::block }) {
        Speculation how;
        how.judge      = by(rule);
        how.after_walk = [](const Lattice & lattice, Draft & draft) {
            for (size_t slot = 1; slot < draft.tokens.size(); ++slot) {
                const size_t  first = slot * lattice.n_cand;
                const float * row   = lattice.scores.data() + first * lattice.n_cand;
                double        sum   = 0;
                draft.q[slot].clear();
                for (int32_t c = 0; c < lattice.n_cand; ++c) {
                    sum += std::exp(row[c]);
                }
                for (int32_t c = 0; c < lattice.n_cand; ++c) {
                    draft.q[slot].push_back({ lattice.ids[first + c], (float) (std::exp(row[c]) / sum) });
                }
            }
        };
        CHECK(!good(plain, Drafting::good, how));
        CHECK(!good(plain, Drafting::bad, how));
    }
}

// A q that is not the one the grammar left
void test_q_without_the_mask() {
    const Chain chain = make_chain("", set_grammar);
    Speculation how;
    CHECK(good(chain, Drafting::good, how));
    how.after_walk = [](const Lattice &, Draft & draft) {
        for (Law & q : draft.q) {
            for (Outcome & outcome : q) {
                outcome.p *= 0.7f;
            }
        }
    };
    CHECK(!good(chain, Drafting::good, how));
}

// The draft ends where the token drawn is improbable: what p_min must not do
void test_dropping_improbable_drafts() {
    for (const Rule rule : { Rule::reject, Rule::block }) {
        for (const Drafting drafting : { Drafting::good, Drafting::bad }) {
            Speculation how;
            how.judge      = by(rule);
            how.after_walk = [](const Lattice &, Draft & draft) {
                for (size_t slot = 0; slot < draft.tokens.size(); ++slot) {
                    if (probability(draft.q[slot], draft.tokens[slot]) < 0.2f) {
                        draft.tokens.resize(slot);
                        draft.q.resize(slot);
                    }
                }
            };
            CHECK(!good(plain, drafting, how));
        }
    }
}

// A sharpness that looks at the token it has drawn: q is right for some sharpness, and smallest for that token
void test_sharpness_chosen_after_the_draw() {
    for (const Rule rule : { Rule::reject, Rule::block }) {
        for (const Drafting drafting : { Drafting::good, Drafting::bad }) {
            Speculation how;
            how.judge    = by(rule);
            how.proposal = erratic_proposal;
            CHECK(good(plain, drafting, how));
            how.after_walk = [](const Lattice &, Draft & draft) {
                for (size_t slot = 0; slot < draft.tokens.size(); ++slot) {
                    for (const float sharpness : { 0.7f, 1.4f }) {
                        const SlotScores & scores = draft.slots[slot];
                        const auto         p      = probabilities(scores, { sharpness, 0.0f }, 1.0f);
                        Law                q;
                        for (size_t c = 0; c < p.size(); ++c) {
                            q.push_back({ scores.ids[c], p[c] });
                        }
                        if (probability(q, draft.tokens[slot]) < probability(draft.q[slot], draft.tokens[slot])) {
                            draft.q[slot] = q;
                        }
                    }
                }
            };
            CHECK(!good(plain, drafting, how));
        }
    }
}

}  // namespace

int main() {
    test_the_rule_without_mistakes();
    test_residual_without_subtraction();
    test_what_is_impossible_is_kept_at_equality();
    test_penalties_that_stand_still_in_a_block();
    test_streams_that_are_one();
    test_q_of_the_wrong_row();
    test_q_without_the_mask();
    test_dropping_improbable_drafts();
    test_sharpness_chosen_after_the_draw();
}
