#include "sampling_params.h"

#include "json-schema-to-grammar.h"
#include "json.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace dflash2 {

namespace {

void check_range(const char * name, double value, double low, double high, const char * range) {
    if (!(value >= low && value <= high)) {
        std::ostringstream message;
        message << "[sampling] " << name << " is " << value << ", it must be " << range;
        throw std::invalid_argument(message.str());
    }
}

void check_token(const char * name, Token token, int32_t n_vocab) {
    if (token < 0 || token >= n_vocab) {
        throw std::invalid_argument(std::string("[sampling] ") + name + " holds token id " + std::to_string(token) +
                                    ", ids go from 0 to " + std::to_string(n_vocab - 1));
    }
}

common_grammar make_grammar(const SamplingOptions & options) {
    if (!options.grammar.empty()) {
        return { COMMON_GRAMMAR_TYPE_USER, options.grammar };
    }
    if (options.json_schema.empty()) {
        return {};
    }
    try {
        return { COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT, json_schema_to_grammar(common_json::parse(options.json_schema)) };
    } catch (const std::exception & error) {
        throw std::invalid_argument(std::string("[sampling] json_schema cannot be turned into a grammar: ") +
                                    error.what());
    }
}

}  // namespace

common_params_sampling sampling_params(const SamplingOptions & options, const Target & target) {
    // as much as there can be, since the samplers allocate what they are asked for
    const auto window = [&](int32_t n) {
        return n < 0 ? target.n_ctx() : std::min(n, target.n_ctx());
    };
    // greedy means the likeliest token: some samplers could remove it, or draw another
    const bool greedy = options.temperature == 0.0f;

    common_params_sampling params;
    params.no_perf               = true;
    params.seed                  = options.seed;
    params.temp                  = greedy ? 0.0f : std::max(options.temperature, 1e-5f);  // less overflows
    params.top_k                 = options.top_k;
    params.top_p                 = options.top_p;
    params.min_p                 = options.min_p;
    params.typ_p                 = greedy ? 1.0f : options.typical_p;
    params.top_n_sigma           = options.top_n_sigma;
    params.xtc_probability       = greedy ? 0.0f : options.xtc_probability;
    params.xtc_threshold         = options.xtc_threshold;
    params.dynatemp_range        = greedy ? 0.0f : options.dynatemp_range;
    params.dynatemp_exponent     = options.dynatemp_exponent;
    params.penalty_repeat        = options.repetition_penalty;
    params.penalty_present       = options.presence_penalty;
    params.penalty_freq          = options.frequency_penalty;
    params.penalty_last_n        = window(options.penalty_last_n);
    params.dry_multiplier        = options.dry_multiplier;
    params.dry_base              = options.dry_base;
    params.dry_allowed_length    = options.dry_allowed_length;
    params.dry_penalty_last_n    = window(options.dry_penalty_last_n);
    params.dry_sequence_breakers = options.dry_sequence_breakers;
    params.mirostat              = options.mirostat;
    params.mirostat_tau          = options.mirostat_tau;
    params.mirostat_eta          = options.mirostat_eta;
    params.grammar               = make_grammar(options);
    for (const auto & [token, bias] : options.logit_bias) {
        params.logit_bias.push_back({ token, bias });
    }
    if (options.ignore_eos) {
        for (Token token = 0; token < target.n_vocab(); ++token) {
            if (llama_vocab_is_eog(target.vocab(), token)) {
                params.logit_bias.push_back({ token, -INFINITY });
            }
        }
    }
    return params;
}

void check_sampling(const SamplingOptions & options, const Target & target) {
    constexpr double inf = INFINITY;
    constexpr double big = 1e30;
    check_range("max_tokens", options.max_tokens, 1, inf, "at least 1");
    check_range("temperature", options.temperature, 0, big, "a number of at least 0");
    check_range("top_k", options.top_k, 0, inf, "at least 0 (0: off)");
    check_range("top_p", options.top_p, 0, 1, "from 0 to 1");
    check_range("min_p", options.min_p, 0, 1, "from 0 to 1");
    check_range("typical_p", options.typical_p, 0, 1, "from 0 to 1");
    check_range("top_n_sigma", options.top_n_sigma, -big, big, "a number (negative: off)");
    check_range("xtc_probability", options.xtc_probability, 0, 1, "from 0 to 1");
    check_range("xtc_threshold", options.xtc_threshold, 0, 1, "from 0 to 1");
    check_range("dynatemp_range", options.dynatemp_range, 0, big, "a number of at least 0");
    check_range("dynatemp_exponent", options.dynatemp_exponent, 0, big, "a number of at least 0");
    check_range("repetition_penalty", options.repetition_penalty, 1e-30, big, "a number above 0");
    check_range("presence_penalty", options.presence_penalty, -big, big, "a number");
    check_range("frequency_penalty", options.frequency_penalty, -big, big, "a number");
    check_range("penalty_last_n", options.penalty_last_n, -1, inf, "at least -1 (-1: the whole context)");
    check_range("dry_multiplier", options.dry_multiplier, 0, big, "a number of at least 0");
    check_range("dry_base", options.dry_base, 0, big, "a number of at least 0");
    check_range("dry_allowed_length", options.dry_allowed_length, 0, inf, "at least 0");
    check_range("dry_penalty_last_n", options.dry_penalty_last_n, -1, inf, "at least -1 (-1: the whole context)");
    check_range("mirostat", options.mirostat, 0, 2, "0, 1 or 2");
    check_range("mirostat_tau", options.mirostat_tau, 0, big, "a number of at least 0");
    check_range("mirostat_eta", options.mirostat_eta, 0, big, "a number of at least 0");
    check_range("logprobs", options.logprobs, -1, target.n_vocab(), "from 0 to the size of the vocabulary");
    for (const Token token : options.stop_token_ids) {
        check_token("stop_token_ids", token, target.n_vocab());
    }
    for (const auto & [token, bias] : options.logit_bias) {
        check_token("logit_bias", token, target.n_vocab());
        if (std::isnan(bias) || bias == INFINITY) {
            throw std::invalid_argument("[sampling] logit_bias of token id " + std::to_string(token) +
                                        " must be a number, or minus infinity to ban the token");
        }
    }
    for (const std::string & stop : options.stop) {
        if (stop.empty()) {
            throw std::invalid_argument("[sampling] stop holds an empty string: every answer would end at once");
        }
    }
    if (!options.grammar.empty() && !options.json_schema.empty()) {
        throw std::invalid_argument("[sampling] grammar and json_schema are both given: give one of them");
    }
}

}  // namespace dflash2
