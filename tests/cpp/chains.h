#pragma once

#include "json-schema-to-grammar.h"
#include "json.h"
#include "sampling.h"
#include "tiny_vocabulary.h"

#include <cmath>
#include <string>
#include <vector>

namespace dflash2 {

// What every answer of the tests follows: repeats something, so that penalties and DRY have work.
inline const std::vector<llama_token> & chain_prompt() {
    static const std::vector<llama_token> prompt = TinyVocabulary::ids("abcadab");
    return prompt;
}

// Sampler chains as requests bring them, over the characters of TinyVocabulary. None looks farther back than the prompt
// is long, so that accepting the prompt again starts a new answer, as long as there is no state of another kind.
struct Chain {
    std::string            name;
    common_params_sampling params;

    // of a schema: takes most of its time in the grammar's copies
    bool has_dear_grammar() const { return params.grammar.type == COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT; }
    bool has_xtc() const { return params.xtc_probability > 0; }
    bool has_grammar() const { return !common_grammar_value(params.grammar).empty(); }
    bool only_looks_back() const { return !has_grammar() && params.reasoning_budget_start.empty(); }
};

inline common_params_sampling plain_chain(float temperature = 1.0f) {
    common_params_sampling params;
    params.no_perf = true;
    params.seed    = 7;
    params.temp    = temperature;
    params.top_k   = 0;
    params.top_p   = 1.0f;
    params.min_p   = 0.0f;

    params.penalty_last_n     = (int32_t) chain_prompt().size();
    params.dry_penalty_last_n = (int32_t) chain_prompt().size();
    return params;
}

template <typename Change>
Chain make_chain(const std::string & name, Change change) {
    Chain chain = { name, plain_chain() };
    change(chain.params);
    return chain;
}

inline void set_grammar(common_params_sampling & params) {
    // forbids what the target likes: a letter, a digit, then letters up to the end
    params.grammar = { COMMON_GRAMMAR_TYPE_USER, "root ::= [a-d] [0-2] [a-f]*" };
}

inline void set_json_schema(common_params_sampling & params) {
    const char * schema = R"({"type": "array", "items": {"enum": [0, 1, 2]}, "minItems": 1})";
    params.grammar      = { COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT, json_schema_to_grammar(common_json::parse(schema)) };
}

inline void set_lazy_grammar(common_params_sampling & params) {
    params.grammar          = { COMMON_GRAMMAR_TYPE_TOOL_CALLS, R"(root ::= [ac] [0-2] [a-f\]]*)" };
    params.grammar_lazy     = true;
    params.grammar_triggers = { { COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN, "a", TinyVocabulary::id('a') },
                                { COMMON_GRAMMAR_TRIGGER_TYPE_WORD, "c" } };
}

// One token of reasoning after an "e", then "0" and the closing bracket are forced
inline void set_reasoning_budget(common_params_sampling & params) {
    params.reasoning_budget_tokens = 1;
    params.reasoning_budget_start  = TinyVocabulary::ids("e");
    params.reasoning_budget_end    = { TinyVocabulary::ids("]") };
    params.reasoning_budget_forced = TinyVocabulary::ids("0]");
}

inline void set_biases(common_params_sampling & params) {
    params.logit_bias = {
        { TinyVocabulary::id('c'), 2.0f },
        { TinyVocabulary::id('d'), -1.5f },
        { TinyVocabulary::id('a'), -INFINITY },
    };
}

// One sampler each
inline std::vector<Chain> single_chains() {
    using P = common_params_sampling;
    return {
        make_chain("temperature 0.7", [](P & p) { p.temp               = 0.7f; }),
        make_chain("temperature 1.0", [](P &) {}),
        make_chain("temperature 1.5", [](P & p) { p.temp               = 1.5f; }),
        make_chain("dynamic temperature", [](P & p) { p.dynatemp_range = 0.6f; }),
        make_chain("top-k", [](P & p) { p.top_k                        = 5; }),
        make_chain("top-p", [](P & p) { p.top_p                        = 0.8f; }),
        make_chain("min-p", [](P & p) { p.min_p                        = 0.1f; }),
        make_chain("typical", [](P & p) { p.typ_p                      = 0.7f; }),
        make_chain("xtc",
                   [](P & p) {
                       p.xtc_probability = 0.5f;
                       p.xtc_threshold   = 0.1f;
                   }),
        make_chain("top-n-sigma", [](P & p) { p.top_n_sigma           = 1.0f; }),
        make_chain("repetition penalty", [](P & p) { p.penalty_repeat = 1.4f; }),
        make_chain("presence penalty", [](P & p) { p.penalty_present  = 1.0f; }),
        make_chain("frequency penalty", [](P & p) { p.penalty_freq    = 0.7f; }),
        make_chain("penalty, short window",
                   [](P & p) {
                       p.penalty_present = 1.5f;
                       p.penalty_last_n  = 2;
                   }),
        make_chain("dry",
                   [](P & p) {
                       p.dry_multiplier     = 0.8f;
                       p.dry_allowed_length = 1;
                   }),
        make_chain("logit bias", set_biases),
        make_chain("grammar", set_grammar),
        make_chain("json schema", set_json_schema),
        make_chain("lazy grammar", set_lazy_grammar),
        make_chain("reasoning budget", set_reasoning_budget),
    };
}

// Several samplers together; first the presets of llama.cpp and of its clients
inline std::vector<Chain> mixed_chains() {
    using P = common_params_sampling;
    return {
        make_chain("top-k 40, top-p 0.95, min-p 0.05, temperature 0.8",
                   [](P & p) {
                       p.top_k = 40;
                       p.top_p = 0.95f;
                       p.min_p = 0.05f;
                       p.temp  = 0.8f;
                   }),
        make_chain("min-p 0.05, temperature 0.8, repetition 1.1",
                   [](P & p) {
                       p.min_p          = 0.05f;
                       p.temp           = 0.8f;
                       p.penalty_repeat = 1.1f;
                   }),
        make_chain("top-k 20, top-p 0.95, temperature 1.0",
                   [](P & p) {
                       p.top_k = 20;
                       p.top_p = 0.95f;
                   }),
        make_chain("min-p 0.1, dry 0.8, xtc 0.5/0.1",
                   [](P & p) {
                       p.min_p              = 0.1f;
                       p.dry_multiplier     = 0.8f;
                       p.dry_allowed_length = 1;
                       p.xtc_probability    = 0.5f;
                   }),
        make_chain("typical 0.9, temperature 1.2, presence 0.5, frequency 0.3",
                   [](P & p) {
                       p.typ_p           = 0.9f;
                       p.temp            = 1.2f;
                       p.penalty_present = 0.5f;
                       p.penalty_freq    = 0.3f;
                   }),
        make_chain("top-n-sigma 1.2, top-k 6, temperature 1.5",
                   [](P & p) {
                       p.top_n_sigma = 1.2f;
                       p.top_k       = 6;
                       p.temp        = 1.5f;
                   }),
        make_chain("temperature 0.6 first, top-k 8, top-p 0.9, reasoning budget",
                   [](P & p) {
                       p.samplers = { COMMON_SAMPLER_TYPE_PENALTIES, COMMON_SAMPLER_TYPE_TEMPERATURE,
                                      COMMON_SAMPLER_TYPE_TOP_K, COMMON_SAMPLER_TYPE_TOP_P };
                       p.temp     = 0.6f;
                       p.top_k    = 8;
                       p.top_p    = 0.9f;
                       set_reasoning_budget(p);
                   }),
        make_chain("dynamic temperature, min-p 0.02, dry, biases, frequency 0.4",
                   [](P & p) {
                       p.dynatemp_range = 0.5f;
                       p.min_p          = 0.02f;
                       p.dry_multiplier = 1.0f;
                       p.penalty_freq   = 0.4f;
                       set_biases(p);
                   }),
        make_chain("grammar, top-k 4, repetition 1.2",
                   [](P & p) {
                       p.top_k          = 4;
                       p.penalty_repeat = 1.2f;
                       set_grammar(p);
                   }),
        make_chain("grammar, min-p 0.05, temperature 0.8, biases",
                   [](P & p) {
                       p.min_p = 0.05f;
                       p.temp  = 0.8f;
                       set_grammar(p);
                       set_biases(p);
                   }),
        make_chain("lazy grammar, reasoning budget, top-p 0.9",
                   [](P & p) {
                       p.top_p = 0.9f;
                       set_lazy_grammar(p);
                       set_reasoning_budget(p);
                   }),
        make_chain("grammar, xtc 0.5/0.1",
                   [](P & p) {
                       p.xtc_probability = 0.5f;
                       set_grammar(p);
                   }),
    };
}

inline std::vector<Chain> all_chains() {
    std::vector<Chain>       chains = single_chains();
    const std::vector<Chain> mixed  = mixed_chains();
    chains.insert(chains.end(), mixed.begin(), mixed.end());
    return chains;
}

}  // namespace dflash2
