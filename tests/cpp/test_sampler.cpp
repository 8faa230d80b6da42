#include "../../cpp/src/sampler.h"

#include "check.h"
#include "dflash2/errors.h"
#include "reference.h"

#include <cmath>
#include <random>

using namespace dflash2;

namespace {

// Rows of logits as targets give them: a few tokens far above many. With ties: in steps of a quarter, so that cuts fall
// between equal logits
std::vector<float> random_row(int32_t size, std::mt19937 & random, bool ties) {
    std::vector<float> row(size);
    for (float & logit : row) {
        logit = 2.5f * noise(random);
        logit = ties ? std::round(4 * logit) / 4 : logit;
    }
    // the tokens that chains know
    for (int32_t token = 0; token < TinyVocabulary::first_filler; ++token) {
        row[token] += 6;
    }
    return row;
}

struct Pair {
    Sampler            ours;
    common_sampler_ptr theirs;

    Pair(const Chain & chain, const llama_model * model) :
        ours(chain.params, model), theirs(reference::make(chain, model)) {
        for (const llama_token token : chain_prompt()) {
            accept(token, false);
        }
    }

    void accept(llama_token token, bool generated) {
        ours.accept(token, generated);
        common_sampler_accept(theirs.get(), token, generated);
    }
};

// Ours, looked up by token
std::vector<float> dense(const Law & law, int32_t size) {
    std::vector<float> p(size);
    for (const Outcome & outcome : law) {
        CHECK(p[outcome.token] == 0);
        p[outcome.token] = outcome.p;
    }
    return p;
}

// law(): the probabilities that the chain gives when it runs on the whole row, draw included
void test_law(const Chain & chain, const llama_model * model, int32_t size, int n_rows) {
    Pair                          pair(chain, model);
    std::mt19937                  random(1);
    std::vector<llama_token_data> row(size);
    for (int i = 0; i < n_rows; ++i) {
        const std::vector<float> logits = random_row(size, random, i % 2 == 1);
        for (const bool grammar_first : { false, true }) {
            const Law & law = grammar_first ? pair.ours.law_under_grammar(logits.data()) : pair.ours.law(logits.data());
            const auto  ours   = dense(law, size);
            const auto  theirs = reference::apply(pair.theirs, pair.theirs, logits.data(), grammar_first, row);
            size_t      n_left = 0;
            double      sum    = 0;
            for (size_t j = 0; j < theirs.size; ++j) {
                const float p = theirs.data[j].p;
                CHECK(std::abs(ours[theirs.data[j].id] - p) <= 1e-6f + 1e-4f * p);
                n_left += p > 0;
                sum += ours[theirs.data[j].id];
            }
            CHECK(law.size() == n_left);
            CHECK(std::abs(sum - 1) < 1e-4);
        }
        // history: what the grammar allows
        const Law & law = pair.ours.law_under_grammar(logits.data());
        // the chain of theirs has drawn no number of XTC for this one
        if (!chain.has_xtc()) {
            const llama_token token = law[random() % law.size()].token;
            if (token != TinyVocabulary::end) {
                pair.accept(token, true);
            }
        } else {
            pair = Pair(chain, model);
        }
    }
}

// sample(): the very tokens of llama.cpp's procedure on the whole row
void test_sample(const Chain & chain, const llama_model * model, int32_t size, int n_rows) {
    Pair                          pair(chain, model);
    std::mt19937                  random(2);
    std::vector<llama_token_data> row(size);
    for (int i = 0; i < n_rows; ++i) {
        const std::vector<float> logits = random_row(size, random, i % 2 == 1);
        const llama_token        theirs = reference::sample(pair.theirs, pair.theirs, logits.data(), row);
        CHECK(pair.ours.sample(logits.data()) == theirs);
        if (theirs != TinyVocabulary::end) {
            pair.accept(theirs, true);
        }
    }
}

// Chains that know beforehand which tokens can matter, most of them
std::vector<Chain> chains_of_few() {
    using P = common_params_sampling;
    return {
        make_chain("greedy", [](P & p) { p.temp = 0; }),
        make_chain("greedy, penalties",
                   [](P & p) {
                       p.temp            = 0;
                       p.penalty_repeat  = 1.3f;
                       p.penalty_present = 0.5f;
                   }),
        make_chain("greedy, dry, biases",
                   [](P & p) {
                       p.temp           = 0;
                       p.dry_multiplier = 1;
                       set_biases(p);
                   }),
        make_chain("greedy, grammar",
                   [](P & p) {
                       p.temp = 0;
                       set_grammar(p);
                   }),
        make_chain("greedy with every filter",
                   [](P & p) {
                       p.temp  = 0;
                       p.top_k = 40;
                       p.top_p = 0.95f;
                       p.min_p = 0.05f;
                   }),
        make_chain("top-k 300",
                   [](P & p) {
                       p.top_k = 300;
                       p.temp  = 1.5f;
                   }),
        make_chain("top-k 40, all penalties, dry, biases",
                   [](P & p) {
                       p.top_k           = 40;
                       p.top_p           = 0.95f;
                       p.penalty_repeat  = 1.2f;
                       p.penalty_freq    = 0.3f;
                       p.penalty_present = -0.5f;  // raises
                       p.dry_multiplier  = 0.8f;
                       set_biases(p);
                   }),
        // whole steps against rows in steps: a bias makes ties that the row does not have
        make_chain("top-k 3, bias by a step",
                   [](P & p) {
                       p.top_k = 3;
                       for (llama_token token = 0; token < 8; ++token) {
                           p.logit_bias.push_back({ token, -0.25f * (float) token });
                       }
                   }),
        // as ignore_eos with a bias on an end token: the ban wins
        make_chain("top-k 3, a bias and a ban on one token",
                   [](P & p) {
                       p.top_k      = 3;
                       p.logit_bias = { { 5, 20.0f }, { 5, -INFINITY } };
                   }),
        make_chain("greedy, a bias and a ban on one token",
                   [](P & p) {
                       p.temp       = 0;
                       p.logit_bias = { { 5, 20.0f }, { 5, -INFINITY } };
                   }),
        make_chain("top-k 10, biased fillers",
                   [](P & p) {
                       p.top_k = 10;
                       for (llama_token token = 100; token < 300; ++token) {
                           p.logit_bias.push_back({ token, 6.0f });
                       }
                   }),
        make_chain("top-k 40 after top-n-sigma",
                   [](P & p) {
                       p.top_k       = 40;
                       p.top_n_sigma = 1.5f;
                   }),
        make_chain("typical before top-k",
                   [](P & p) {
                       p.samplers = { COMMON_SAMPLER_TYPE_TYPICAL_P, COMMON_SAMPLER_TYPE_TOP_K };
                       p.typ_p    = 0.9f;
                       p.top_k    = 20;
                   }),
        make_chain("top-k 20, xtc",
                   [](P & p) {
                       p.top_k           = 20;
                       p.xtc_probability = 0.5f;
                       p.xtc_threshold   = 0.05f;
                   }),
    };
}

void test_logits_that_are_no_numbers(const llama_model * model, int32_t size) {
    for (const float bad : { NAN, INFINITY }) {
        for (const float temperature : { 0.0f, 1.0f }) {
            common_params_sampling params = plain_chain(temperature);
            params.top_k                  = temperature > 0 ? 3 : 0;
            Sampler                  sampler(params, model);
            const std::vector<float> row(size, bad);
            for (const bool drawn : { false, true }) {
                bool thrown = false;
                try {
                    drawn ? (void) sampler.sample(row.data()) : (void) sampler.law(row.data());
                } catch (const Error &) {
                    thrown = true;
                }
                CHECK(thrown);
            }
        }
    }
}

void test_which_chains_have_a_law(const llama_model * model) {
    for (const Chain & chain : all_chains()) {
        const Sampler sampler(chain.params, model);
        CHECK(sampler.has_law());
        CHECK(sampler.law_is_pure() == (!chain.has_grammar() && !chain.has_xtc()));
        CHECK((bool) sampler.mask() == (chain.has_grammar()));
    }
    using P = common_params_sampling;
    for (const Chain & chain : { make_chain("", [](P & p) { p.mirostat = 1; }),
                                 make_chain("", [](P & p) { p.mirostat = 2; }), make_chain("", [](P & p) {
                                     p.samplers        = { COMMON_SAMPLER_TYPE_ADAPTIVE_P };
                                     p.adaptive_target = 0.5f;
                                 }) }) {
        const Sampler sampler(chain.params, model);
        CHECK(!sampler.has_law() && !sampler.law_is_pure());
    }
}

// The mask follows the path, and neither it nor a copy moves the sampler it came from
void test_mask_and_copies_stand_alone(const llama_model * model) {
    common_params_sampling params = plain_chain();
    params.grammar                = { COMMON_GRAMMAR_TYPE_USER, "root ::= \"a\" [01] \"b\"" };
    Sampler                        sampler(params, model);
    const std::vector<llama_token> ids  = TinyVocabulary::ids("ab01");
    const auto                     left = [&](const Mask & mask, const std::string & path) {
        std::vector<float> scores(ids.size(), 1.0f);
        mask(TinyVocabulary::ids(path), ids.data(), scores.data(), (int32_t) ids.size());
        std::string allowed;
        for (size_t c = 0; c < ids.size(); ++c) {
            allowed += scores[c] == -INFINITY ? "" : std::string(1, "ab01"[c]);
        }
        return allowed;
    };
    const Mask mask = sampler.mask();
    CHECK(left(mask, "") == "a");
    CHECK(left(mask, "a") == "01");
    CHECK(left(mask, "a1") == "b");

    Sampler copy = sampler.clone();
    copy.accept(TinyVocabulary::id('a'));
    CHECK(copy.allows(TinyVocabulary::id('0')) && !copy.allows(TinyVocabulary::id('a')));
    CHECK(sampler.allows(TinyVocabulary::id('a')) && !sampler.allows(TinyVocabulary::id('0')));
    CHECK(!sampler.allows(no_token));
    CHECK(left(copy.mask(), "") == "01");
    CHECK(left(sampler.mask(), "") == "a");
}

}  // namespace

int main() {
    const TinyVocabulary     tiny, middling(5000), large(50000);
    std::vector<Chain>       chains = all_chains();
    const std::vector<Chain> few    = chains_of_few();
    chains.insert(chains.end(), few.begin(), few.end());
    for (const Chain & chain : chains) {
        test_law(chain, middling.model(), 5000, 20);
        test_law(chain, large.model(), 50000, 4);
        test_sample(chain, middling.model(), 5000, 40);
        test_sample(chain, large.model(), 50000, 6);
    }
    test_logits_that_are_no_numbers(middling.model(), 5000);
    test_which_chains_have_a_law(tiny.model());
    test_mask_and_copies_stand_alone(tiny.model());
}
