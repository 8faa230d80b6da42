#include "../../cpp/src/verify.h"

#include "chains.h"
#include "check.h"
#include "table_pair.h"

#include <cmath>

using namespace dflash2;

namespace {

using Path = std::vector<Token>;

constexpr Token last_token = TinyVocabulary::end;

const llama_model * model() {
    static const TinyVocabulary vocabulary;
    return vocabulary.model();
}

bool close(double a, double b, double tolerance = 1e-6) {
    return std::abs(a - b) <= tolerance;
}

// Rows of one block. asked: which of them a rule looked at
struct Rows {
    std::vector<std::vector<float>> logits;
    std::vector<int32_t>            asked;

    Block block(const Draft & draft) {
        return { draft,
                 [this](int32_t i) {
                     asked.push_back(i);
                     return logits.at(i).data();
                 },
                 [](Token token) { return token == last_token; } };
    }
};

// The row of a law on the first tokens
std::vector<float> row_of(const std::vector<double> & p) {
    std::vector<float> row(n_vocab, -INFINITY);
    for (size_t token = 0; token < p.size(); ++token) {
        row[token] = (float) std::log(p[token]);
    }
    return row;
}

std::vector<float> row_at(Token token) {
    std::vector<float> row(n_vocab, 0.0f);
    row[token] = 50;
    return row;
}

Law law_of(const std::vector<float> & p) {
    Law law;
    for (size_t token = 0; token < p.size(); ++token) {
        law.push_back({ (Token) token, p[token] });
    }
    return law;
}

// Each token drawn from the same law
Draft drawn_from(const Law & q, size_t n, Random & random) {
    Draft draft;
    for (size_t i = 0; i < n; ++i) {
        draft.tokens.push_back(draw(q, random));
        draft.q.push_back(q);
    }
    return draft;
}

Draft greedy(const Path & path) {
    return { path, std::vector<float>(path.size(), 1.0f), {} };
}

const std::vector<double> golden_p = { 0.5, 0.2, 0.15, 0.1, 0.05 };

// Golden vector 5a of the DFlash 2 specification
void test_golden_residuals() {
    const Law p    = law_of({ 0.5f, 0.2f, 0.15f, 0.1f, 0.05f });
    const Law rest = residual(p, law_of({ 0.7f, 0.3f }));
    CHECK(close(mass(rest), 0.3));
    CHECK(rest.size() == 3);
    CHECK(close(probability(rest, 2) / 0.3, 0.5));
    CHECK(close(probability(rest, 3) / 0.3, 1.0 / 3));
    CHECK(close(probability(rest, 4) / 0.3, 1.0 / 6));

    const Law other = residual(p, law_of({ 1.0f }));
    CHECK(close(mass(other), 0.5));
    for (Token token = 1; token < 5; ++token) {
        CHECK(close(probability(other, token) / 0.5, std::vector<double>{ 0, 0.4, 0.3, 0.2, 0.1 }[token]));
    }
    CHECK(residual(p, p).empty());
}

// The same vector: how often a draft is kept, and what comes where it is not
void test_golden_acceptance() {
    constexpr int n      = 200000;
    const double  spread = 5 * std::sqrt(0.25 / n);
    for (const Rule rule : { Rule::reject, Rule::block }) {
        for (const bool one_hot : { false, true }) {
            const Law           q = one_hot ? law_of({ 1.0f }) : law_of({ 0.7f, 0.3f });
            Rows                rows{ { row_of(golden_p), row_of({ 1.0 }) }, {} };
            Randoms             randoms(1);
            Sampler             sampler(plain_chain(), model());
            std::vector<double> kept(2), other(5);
            for (int i = 0; i < n; ++i) {
                const Draft   draft   = drawn_from(q, 1, randoms.walk);
                const Verdict verdict = verify(rule, sampler, rows.block(draft), randoms);
                kept[verdict.n_accepted] += 1.0 / n;
                if (verdict.n_accepted == 0) {
                    CHECK(verdict.tokens.size() == 1);
                    other[verdict.tokens[0]] += 1.0 / n;
                }
            }
            CHECK(close(kept[1], one_hot ? 0.5 : 0.7, spread));
            for (Token token = 0; token < 5; ++token) {
                const double left = golden_p[token] - probability(q, token);
                CHECK(close(other[token], std::max(left, 0.0), spread));
            }
        }
    }
}

// The example of Sun et al.: tokens judged one by one keep 2/3 + 4/9 of two in the mean, the block 2/3 + 5/9
void test_golden_block() {
    constexpr int n = 200000;
    for (const Rule rule : { Rule::reject, Rule::block }) {
        const std::vector<float> row = row_of({ 1.0 / 3, 2.0 / 3 });
        Rows                     rows{ { row, row, row }, {} };
        Randoms                  randoms(2);
        Sampler                  sampler(plain_chain(), model());
        double                   accepted = 0;
        for (int i = 0; i < n; ++i) {
            const Draft draft = drawn_from(law_of({ 2.0f / 3, 1.0f / 3 }), 2, randoms.walk);
            accepted += verify(rule, sampler, rows.block(draft), randoms).n_accepted;
        }
        CHECK(close(accepted / n, (rule == Rule::block ? 11.0 : 10.0) / 9, 5 * 1.0 / std::sqrt(n)));
    }
}

void test_what_the_target_would_draw_is_kept() {
    Randoms     randoms(3);
    TableTarget target;
    for (const Rule rule : { Rule::reject, Rule::block }) {
        Sampler sampler(plain_chain(0.8f), model());
        for (int i = 0; i < 5000; ++i) {
            Rows  rows;
            Draft draft;
            Token last = (Token) (i % n_vocab);
            rows.logits.emplace_back(target.row(last), target.row(last) + n_vocab);
            for (int slot = 0; slot < 3 && last != last_token; ++slot) {
                draft.q.push_back(sampler.law(target.row(last)));
                last = draw(draft.q.back(), randoms.walk);
                draft.tokens.push_back(last);
                rows.logits.emplace_back(target.row(last), target.row(last) + n_vocab);
            }
            CHECK(verify(rule, sampler, rows.block(draft), randoms).n_accepted == (int32_t) draft.tokens.size());
        }
    }
}

void test_what_the_target_never_draws_is_not_kept() {
    Randoms randoms(4);
    for (const Rule rule : { Rule::reject, Rule::block }) {
        Sampler sampler(plain_chain(), model());
        Rows    rows{ { row_of(golden_p), row_of(golden_p), row_of(golden_p) }, {} };
        for (int i = 0; i < 5000; ++i) {
            Draft draft = drawn_from({ { 5, 0.5f }, { 6, 0.5f } }, 2, randoms.walk);
            CHECK(verify(rule, sampler, rows.block(draft), randoms).n_accepted == 0);
            draft = greedy({ 5, 6 });
            CHECK(verify(rule, sampler, rows.block(draft), randoms).n_accepted == 0);
        }
    }
}

// p below q everywhere, as rounding makes it: nothing is left to draw from
void test_an_empty_residual_means_the_law_itself() {
    Randoms             randoms(5);
    Sampler             sampler(plain_chain(), model());
    Rows                rows{ { row_of({ 0.6, 0.4 }), row_of({ 1.0 }) }, {} };
    std::vector<double> rejected(2);
    for (int i = 0; i < 40000; ++i) {
        const Draft   draft   = drawn_from({ { 0, 1.2f }, { 1, 0.8f } }, 1, randoms.walk);
        const Verdict verdict = verify(Rule::reject, sampler, rows.block(draft), randoms);
        if (verdict.tokens.size() == 1) {  // not even by chance what was drafted
            rejected[verdict.tokens[0]] += 1;
        }
    }
    CHECK(rejected[0] > 0 && rejected[1] > 0);
}

void test_temperature_0_is_the_likeliest_token() {
    for (const Rule rule : { Rule::match, Rule::reject, Rule::block }) {
        Randoms     randoms(6);
        Sampler     sampler(plain_chain(0.0f), model());
        Rows        rows{ { row_at(3), row_at(1), row_at(4) }, {} };
        const Draft right = greedy({ 3, 1 }), half = greedy({ 3, 2 }), wrong = greedy({ 2, 1 });
        CHECK((verify(rule, sampler, rows.block(right), randoms).tokens == Path{ 3, 1, 4 }));
        CHECK((verify(rule, sampler, rows.block(half), randoms).tokens == Path{ 3, 1 }));
        CHECK((verify(rule, sampler, rows.block(wrong), randoms).tokens == Path{ 3 }));
        CHECK((verify(rule, sampler, rows.block(greedy({})), randoms).tokens == Path{ 3 }));
    }
}

void test_rows_after_a_rejection_are_not_looked_at() {
    for (const Rule rule : { Rule::match, Rule::reject }) {
        Randoms     randoms(7);
        Sampler     sampler(plain_chain(), model());
        const Draft draft = greedy({ 3, 2, 5 });
        Rows        rows{ { row_at(3), row_at(1), {}, {} }, {} };
        verify(rule, sampler, rows.block(draft), randoms);
        CHECK((rows.asked == std::vector<int32_t>{ 0, 1 }));
    }
}

void test_nothing_follows_the_end() {
    for (const Rule rule : { Rule::match, Rule::reject, Rule::block }) {
        Randoms     randoms(8);
        Sampler     sampler(plain_chain(), model());
        Rows        rows{ { row_at(3), row_at(last_token), row_at(2) }, {} };
        const Draft draft   = greedy({ 3, last_token });
        Verdict     verdict = verify(rule, sampler, rows.block(draft), randoms);
        CHECK((verdict.tokens == Path{ 3, last_token }));
        CHECK(verdict.n_accepted == 2);

        const Draft other = greedy({ 3, 4 });
        verdict           = verify(rule, sampler, rows.block(other), randoms);
        CHECK((verdict.tokens == Path{ 3, last_token }));
        CHECK(verdict.n_accepted == 1);
    }
}

void test_an_answer_ends_where_nothing_is_allowed() {
    common_params_sampling params = plain_chain();
    params.grammar                = { COMMON_GRAMMAR_TYPE_USER, "root ::= \"ab\"" };
    params.logit_bias             = { { TinyVocabulary::id('b'), -INFINITY } };
    for (const Rule rule : { Rule::match, Rule::reject }) {
        Randoms     randoms(9);
        Sampler     sampler(params, model());
        const Draft draft = greedy({ TinyVocabulary::id('a'), TinyVocabulary::id('b') });
        Rows        rows{ { row_at(2), row_at(2), {} }, {} };
        CHECK((verify(rule, sampler, rows.block(draft), randoms).tokens == Path{ TinyVocabulary::id('a'), no_token }));
    }
}

bool same(const Law & a, const Law & b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Outcome & x, const Outcome & y) { return x.token == y.token && x.p == y.p; });
}

// Penalties, DRY and grammar of the sampler go on from the tokens that were decided, whatever was drafted
void test_history_is_that_of_the_verdict() {
    for (const Chain & chain : all_chains()) {
        if (chain.has_xtc()) {
            continue;
        }
        for (const Rule rule : { Rule::match, Rule::reject, Rule::block }) {
            const Sampler first(chain.params, model());
            if (rule == Rule::block && !first.law_is_pure()) {
                continue;
            }
            const TableTarget target;
            Randoms           randoms(10);
            for (int i = 0; i < 50; ++i) {
                Sampler sampler = first.clone(), expected = first.clone();
                Token   anchor = 0;
                for (int cycle = 0; cycle < 3 && anchor != last_token; ++cycle) {
                    const Draft draft = drawn_from(law_of({ 0.3f, 0.3f, 0.2f, 0.2f }), 3, randoms.walk);
                    Rows        rows;
                    rows.logits.emplace_back(target.row(anchor), target.row(anchor) + n_vocab);
                    for (const Token token : draft.tokens) {
                        rows.logits.emplace_back(target.row(token), target.row(token) + n_vocab);
                    }
                    for (const Token token : verify(rule, sampler, rows.block(draft), randoms).tokens) {
                        expected.accept(token);
                        anchor = token;
                    }
                    const float * row = target.row(0);
                    CHECK(same(sampler.law(row), expected.law(row)));
                    CHECK(same(sampler.law_under_grammar(row), expected.law_under_grammar(row)));
                }
            }
        }
    }
}

// With the same seed the tokens are those of decoding without a drafter, mirostat included
void test_match_repeats_plain_decoding() {
    std::vector<Chain> chains = all_chains();
    for (const int mirostat : { 1, 2 }) {
        chains.push_back(make_chain("mirostat", [&](common_params_sampling & p) { p.mirostat = mirostat; }));
    }
    const TableTarget target;
    for (const Chain & chain : chains) {
        for (uint32_t seed = 0; seed < 20; ++seed) {
            common_params_sampling params = chain.params;
            params.seed                   = seed;
            Sampler plain(params, model()), drafted(params, model());
            Path    expected, tokens;
            Token   last = 0;
            while (expected.size() < 20 && last != last_token) {
                last = plain.sample(target.row(last));
                plain.accept(last);
                expected.push_back(last);
            }
            Randoms randoms(seed);
            Token   anchor = 0;
            while (tokens.size() < expected.size()) {
                const Draft draft = drawn_from(law_of({ 0.2f, 0.3f, 0.2f, 0.1f, 0.2f }), 3, randoms.walk);
                Rows        rows;
                rows.logits.emplace_back(target.row(anchor), target.row(anchor) + n_vocab);
                for (const Token token : draft.tokens) {
                    rows.logits.emplace_back(target.row(token), target.row(token) + n_vocab);
                }
                for (const Token token : verify(Rule::match, drafted, rows.block(draft), randoms).tokens) {
                    tokens.push_back(token);
                    anchor = token;
                }
            }
            tokens.resize(expected.size());
            CHECK(tokens == expected);
        }
    }
}

void test_the_rule_fits_the_sampler() {
    const auto chosen = [](const std::string & verify, const common_params_sampling & params) {
        return choose_rule(verify, Sampler(params, model()));
    };
    common_params_sampling plain = plain_chain(), grammar = plain_chain(), xtc = plain_chain(),
                           mirostat = plain_chain();
    set_grammar(grammar);
    xtc.xtc_probability = 0.5f;
    mirostat.mirostat   = 2;
    for (const char * verify : { "auto", "reject", "block", "match" }) {
        CHECK(chosen(verify, mirostat) == Rule::match);
        CHECK(chosen(verify, plain_chain(0.0f)) == Rule::match);
    }
    CHECK(chosen("reject", plain) == Rule::reject);
    CHECK(chosen("block", plain) == Rule::block);
    CHECK(chosen("block", grammar) == Rule::reject);
    CHECK(chosen("block", xtc) == Rule::reject);
    for (const auto & params : { plain, grammar, xtc }) {
        CHECK(chosen("match", params) == Rule::match);
        CHECK(chosen("auto", params) != Rule::match);
    }
}

// Slots up to the first rejection, each with the law of its row
void test_the_laws_that_judged_are_told() {
    for (const Rule rule : { Rule::reject, Rule::block }) {
        Rows                rows{ { row_of({ 0, 0, 0, 1 }), row_of({ 1.0 }), row_at(3), row_at(3) }, {} };
        const Draft         draft = { { 3, 4, 3 }, { 1, 1, 1 }, { { { 3, 1 } }, { { 4, 1 } }, { { 3, 1 } } } };
        std::vector<size_t> slots;
        Block               block = rows.block(draft);
        block.judged              = [&](size_t i, const Law & p) {
            CHECK(close(probability(p, i == 0 ? 3 : 0), 1));
            slots.push_back(i);
        };
        Sampler sampler(plain_chain(), model());
        Randoms randoms(1);
        CHECK(verify(rule, sampler, block, randoms).n_accepted == 1);
        CHECK((slots == std::vector<size_t>{ 0, 1 }));
    }
}

}  // namespace

int main() {
    test_golden_residuals();
    test_golden_acceptance();
    test_golden_block();
    test_what_the_target_would_draw_is_kept();
    test_what_the_target_never_draws_is_not_kept();
    test_an_empty_residual_means_the_law_itself();
    test_temperature_0_is_the_likeliest_token();
    test_rows_after_a_rejection_are_not_looked_at();
    test_nothing_follows_the_end();
    test_an_answer_ends_where_nothing_is_allowed();
    test_history_is_that_of_the_verdict();
    test_match_repeats_plain_decoding();
    test_the_rule_fits_the_sampler();
    test_the_laws_that_judged_are_told();
}
