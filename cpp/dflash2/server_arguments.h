#pragma once

#include "arg.h"
#include "dflash2/server_options.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace dflash2 {

// The number that the whole of `value` spells, if it does
template <typename Number>
std::optional<Number> parse_number(const std::string & value) {
    try {
        size_t end = 0;
        Number number;
        if constexpr (std::is_integral_v<Number>) {
            number = std::stoi(value, &end);
        } else {
            number = std::stof(value, &end);
        }
        return end == value.size() ? std::optional<Number>(number) : std::nullopt;
    } catch (const std::logic_error &) {
        return std::nullopt;
    }
}

// llama-server's flags. A header alone: llama.cpp's parser of flags is a library below ours. add_opt takes a common_arg
template <typename AddOpt>
void add_server_arguments(const AddOpt & add_opt) {
    const auto add = [&](common_arg arg, const char * env) {
        add_opt(arg.set_spec().set_examples({ LLAMA_EXAMPLE_SERVER }).set_env(env));
    };

    add(common_arg({ "--draft-dflash2" }, "FILE|<user>/<repo>[:quant]",
                   "draft with this DFlash 2 drafter, a GGUF file or a Hugging Face repository; exact for greedy and "
                   "sampling requests, with a depth that follows what drafting gains (default: unused)",
                   [](common_params & params, const std::string & value) {
                       // user/repo is what a repository is called; whatever else it may be is a file, there or not
                       const std::filesystem::path path(value);
                       const bool is_file = std::filesystem::exists(path) || path.extension() == ".gguf" ||
                                            path.is_absolute() || value.find('/') == std::string::npos ||
                                            value.find('/') != value.rfind('/');

                       params.speculative.dflash2.draft = value;
                       // found, downloaded and given to -ngld, -devd, -td as llama.cpp's own drafters are
                       params.speculative.types = { COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH };
                       (is_file ? params.speculative.draft.mparams.path : params.speculative.draft.mparams.hf_repo) =
                           value;
                   }),
        "LLAMA_ARG_DRAFT_DFLASH2");

    add(common_arg({ "--dflash2-depth" }, "auto|N",
                   "tokens that the DFlash 2 drafter drafts in each cycle, at most its block size - 1; auto: as many "
                   "as pay, none where drafting does not (default: auto)",
                   [](common_params & params, const std::string & value) {
                       const bool    automatic = value == "auto";
                       const int32_t depth     = automatic ? -1 : parse_number<int32_t>(value).value_or(0);
                       if (!automatic && depth < 1) {
                           throw std::invalid_argument("'" + value + "' is neither auto nor a number from 1 on");
                       }
                       params.speculative.dflash2.depth = depth;
                   }),
        "LLAMA_ARG_DFLASH2_DEPTH");

    add(common_arg({ "--dflash2-verify" }, "auto|reject|block|match",
                   "rule by which sampling requests accept drafts: reject and block keep the distribution, match also "
                   "keeps the tokens that the seed gives without a drafter (default: auto, the best exact rule)",
                   [](common_params & params, const std::string & value) {
                       if (value != "auto" && value != "reject" && value != "block" && value != "match") {
                           throw std::invalid_argument("'" + value + "' is none of auto, reject, block, match");
                       }
                       params.speculative.dflash2.verify = value;
                   }),
        "LLAMA_ARG_DFLASH2_VERIFY");

    add(common_arg({ "--dflash2-p-min" }, "P",
                   "a draft ends before the first token whose probability in the drafter is lower (default: 0)",
                   [](common_params & params, const std::string & value) {
                       const auto p_min = parse_number<float>(value);
                       if (!p_min || !(*p_min >= 0 && *p_min <= 1)) {
                           throw std::invalid_argument("'" + value + "' is no number from 0 to 1");
                       }
                       params.speculative.dflash2.p_min = *p_min;
                   }),
        "LLAMA_ARG_DFLASH2_P_MIN");

    add(common_arg(
            { "--dflash2-head" }, "auto|target|q4_0",
            "LM head that the DFlash 2 drafter computes with: the target's, or a copy of it in Q4_0, which takes "
            "memory and is faster on a CPU; auto: a copy where it pays (default: auto)",
            [](common_params & params, const std::string & value) {
                if (value != "auto" && value != "target" && value != "q4_0") {
                    throw std::invalid_argument("'" + value + "' is none of auto, target, q4_0");
                }
                params.speculative.dflash2.draft_head = value;
            }),
        "LLAMA_ARG_DFLASH2_HEAD");

    add(common_arg({ "--dflash2-ctx" }, "N",
                   "positions of each slot that the DFlash 2 drafter can draft at, and keeps a cache for where it does "
                   "not look at a window only (default: 0, as many as the slot has)",
                   [](common_params & params, const std::string & value) {
                       const auto n_ctx = parse_number<int32_t>(value);
                       if (n_ctx.value_or(-1) < 0) {
                           throw std::invalid_argument("'" + value +
                                                       "' is no number of positions from 0 to 2147483647");
                       }
                       params.speculative.dflash2.n_ctx = *n_ctx;
                   }),
        "LLAMA_ARG_DFLASH2_CTX");
}

}  // namespace dflash2
