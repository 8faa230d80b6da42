#pragma once

#include "arg.h"
#include "dflash2/server_options.h"

#include <filesystem>
#include <stdexcept>
#include <string>

namespace dflash2 {

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
                       size_t  end   = 0;
                       int32_t depth = -1;
                       if (value != "auto") {
                           try {
                               depth = std::stoi(value, &end);
                           } catch (const std::logic_error &) {
                               end = 0;
                           }
                           if (end != value.size() || depth < 1) {
                               throw std::invalid_argument("'" + value + "' is neither auto nor a number from 1 on");
                           }
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
                       size_t end   = 0;
                       float  p_min = -1;
                       try {
                           p_min = std::stof(value, &end);
                       } catch (const std::logic_error &) {
                           end = 0;
                       }
                       if (end != value.size() || !(p_min >= 0 && p_min <= 1)) {
                           throw std::invalid_argument("'" + value + "' is no number from 0 to 1");
                       }
                       params.speculative.dflash2.p_min = p_min;
                   }),
        "LLAMA_ARG_DFLASH2_P_MIN");

    add(common_arg({ "--dflash2-ctx" }, "N",
                   "positions of each slot that the DFlash 2 drafter can draft at, and keeps a cache for where it does "
                   "not look at a window only (default: 0, as many as the slot has)",
                   [](common_params & params, const std::string & value) {
                       size_t  end   = 0;
                       int32_t n_ctx = -1;
                       try {
                           n_ctx = std::stoi(value, &end);
                       } catch (const std::logic_error &) {
                           end = 0;
                       }
                       if (end != value.size() || n_ctx < 0) {
                           throw std::invalid_argument("'" + value +
                                                       "' is no number of positions from 0 to 2147483647");
                       }
                       params.speculative.dflash2.n_ctx = n_ctx;
                   }),
        "LLAMA_ARG_DFLASH2_CTX");
}

}  // namespace dflash2
