#include "gguf_checks.h"

#include "dflash2/errors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

namespace dflash2 {

namespace {

// Fixed sizes inside llama.cpp (llama-hparams.h)
constexpr int64_t max_layers  = 512;
constexpr int64_t max_experts = 1024;

std::string to_string(const std::vector<int64_t> & shape) {
    std::string result = "[";
    for (const int64_t n : shape) {
        result += (result.size() > 1 ? ", " : "") + std::to_string(n);
    }
    return result + "]";
}

void check_between(const GgufFile & file, const std::string & key, int64_t low, int64_t high) {
    const auto value = file.integer(key);
    if (value && (*value < low || *value > high)) {
        bad_file(file, "key " + key + " is " + std::to_string(*value) + ", a number from " + std::to_string(low) +
                           " to " + std::to_string(high) + " is needed");
    }
}

void check_experts(const GgufFile & file, const std::string & prefix) {
    check_between(file, prefix + "expert_count", 0, max_experts);
    const int64_t n_expert = file.integer(prefix + "expert_count").value_or(0);
    const int64_t n_group  = file.integer(prefix + "expert_group_count").value_or(0);
    // one number for all layers, or a list
    if (!file.is_array(prefix + "expert_used_count")) {
        check_between(file, prefix + "expert_used_count", n_expert > 0 ? 1 : 0, n_expert);
    }
    check_between(file, prefix + "expert_group_count", 0, std::max<int64_t>(0, n_expert - 1));
    if (n_group > 1) {
        check_between(file, prefix + "expert_group_used_count", 1, n_group - 1);
        if (n_expert % n_group != 0) {
            bad_file(file, std::to_string(n_expert) + " experts do not divide into " + prefix + "expert_group_count " +
                               std::to_string(n_group));
        }
    }
}

void check_tokenizer(const GgufFile & file) {
    const std::string model = file.text("tokenizer.ggml.model").value_or("");
    if (model.empty() || model == "none" || model == "no_vocab") {
        bad_file(file, "it has no tokenizer (tokenizer.ggml.model is " + (model.empty() ? "missing" : model) +
                           "): convert the file again, with its vocabulary");
    }
    const auto tokens = file.texts("tokenizer.ggml.tokens");
    if (tokens.empty()) {
        bad_file(file, "it has no tokenizer (tokenizer.ggml.tokens is missing or empty): convert the file again, with "
                       "its vocabulary");
    }
    std::unordered_set<std::string> seen;
    for (const std::string & token : tokens) {
        // llama.cpp gives empty ones names of their own
        if (!token.empty() && !seen.insert(token).second) {
            bad_file(file, "tokenizer.ggml.tokens holds '" + token + "' twice");
        }
    }
}

}  // namespace

void bad_file(const GgufFile & file, const std::string & what) {
    throw ModelLoadError("[load] " + file.path() + ": " + what);
}

int32_t positive(const GgufFile & file, const std::string & key) {
    const int64_t value = file.required_integer(key);
    if (value < 1 || value > INT32_MAX) {
        bad_file(file, "key " + key + " is " + std::to_string(value) + ", a positive number is needed");
    }
    return (int32_t) value;
}

void check_shape(const GgufFile & file, const std::string & name, const std::vector<int64_t> & wanted) {
    const std::vector<int64_t> found = file.shape(name);
    if (found.empty()) {
        bad_file(file, "tensor " + name + " is missing, a model with these settings needs it: convert the file again");
    }
    std::vector<int64_t> dense = wanted;
    while (dense.size() > 1 && dense.back() == 1) {
        dense.pop_back();
    }
    if (found != dense) {
        bad_file(file, "tensor " + name + " has shape " + to_string(found) + ", its settings need " +
                           to_string(wanted) + ": convert the file again");
    }
}

void check_model(const GgufFile & file) {
    const std::string prefix = file.architecture() + ".";

    const int32_t n_layer = positive(file, prefix + "block_count");
    positive(file, prefix + "embedding_length");
    check_between(file, prefix + "block_count", 1, max_layers);
    check_between(file, prefix + "nextn_predict_layers", 0, n_layer);
    check_experts(file, prefix);

    const std::string                 scaling = file.text(prefix + "rope.scaling.type").value_or("none");
    const std::array<const char *, 4> known   = { "none", "linear", "yarn", "longrope" };
    if (std::find(known.begin(), known.end(), scaling) == known.end()) {
        bad_file(file, prefix + "rope.scaling.type is '" + scaling + "', none, linear, yarn or longrope is needed");
    }
    const int64_t n_rot = file.integer(prefix + "rope.dimension_count").value_or(0);
    if (n_rot % 2 != 0) {
        bad_file(file, prefix + "rope.dimension_count is " + std::to_string(n_rot) + ", an even number is needed");
    }
    for (const char * key : { "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon" }) {
        const double epsilon = file.number(prefix + key).value_or(0);
        if (!std::isfinite(epsilon) || epsilon < 0) {
            bad_file(file, prefix + key + " is " + std::to_string(epsilon) + ", a number of at least 0 is needed");
        }
    }
    check_tokenizer(file);
}

}  // namespace dflash2
