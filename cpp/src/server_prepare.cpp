#include "dflash2/errors.h"
#include "dflash2/server.h"
#include "gguf_file.h"
#include "pair.h"
#include "server_log.h"
#include "weight_layout.h"

#include <algorithm>
#include <stdexcept>

namespace dflash2 {

namespace {

[[noreturn]] void refuse(const std::string & what) {
    throw std::invalid_argument("[--draft-dflash2] " + what);
}

void check_flags(const common_params & params) {
    const common_params_speculative & speculative = params.speculative;
    const common_params_model &       model       = speculative.draft.mparams;
    const std::string &               draft       = speculative.dflash2.draft;

    if (speculative.types != std::vector<common_speculative_type>{ COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH }) {
        refuse("--spec-type asks for another way of drafting: give one of the two");
    }
    // -md leaves its value in hf_file
    if (!model.hf_file.empty() || !model.url.empty() || (model.hf_repo.empty() ? model.path : model.hf_repo) != draft) {
        refuse("-md or -hfd names a drafter too: give one of them");
    }
    if (params.split_mode == LLAMA_SPLIT_MODE_TENSOR) {
        refuse("-sm tensor cuts the target's hidden states and its head into parts on several devices, the drafter "
               "needs them whole: use -sm layer");
    }
    if (params.embedding) {
        refuse("a server for embeddings or reranking writes no text to draft: leave one of the two out");
    }
    for (const ggml_type type : { speculative.draft.cache_type_k, speculative.draft.cache_type_v }) {
        if (ggml_is_quantized(type)) {
            log_line(LogLevel::warning, std::string("a drafter cache of type ") + ggml_type_name(type) +
                                            " loses acceptance and saves little, the drafter has few layers: f16 is "
                                            "better");
            break;
        }
    }
}

// What the hub did not give has no path, and llama.cpp goes on
void check_found(const char * flag, const common_params_model & model, bool offline) {
    if (!model.path.empty() || model.hf_repo.empty()) {
        return;
    }
    throw ModelLoadError("[load] " + std::string(flag) + " " + model.hf_repo +
                         (offline ? ": nothing in the cache, and --offline forbids looking elsewhere" :
                                    ": the hub has no such repository or does not show it, or it has no GGUF of that "
                                    "name or type, and neither has the cache"));
}

// The rows of one cycle of all slots go through one decode and one micro-batch. One more, because llama.cpp aborts when
// the rows that a recurrent target may take back fill a micro-batch
void make_room_for_rows(common_params & params, int32_t depth) {
    const int32_t n_rows = params.n_parallel * (depth + 1) + 1;
    const auto    raise  = [&](const char * flag, int32_t & value) {
        if (value < n_rows) {
            log_line(LogLevel::info, std::string(flag) + " is raised from " + std::to_string(value) + " to " +
                                         std::to_string(n_rows) + ": the rows of " + std::to_string(params.n_parallel) +
                                         " slots that verify " + std::to_string(depth) + " tokens each");
            value = n_rows;
        }
    };
    raise("--batch-size", params.n_batch);
    raise("--ubatch-size", params.n_ubatch);
}

}  // namespace

void prepare_server(common_params & params) {
    use_server_log();
    check_flags(params);
    check_found("-hf", params.model, params.offline);
    check_found("--draft-dflash2", params.speculative.draft.mparams, params.offline);

    const GgufFile    target(params.model.path);
    const GgufFile    drafter(params.speculative.draft.mparams.path);
    const DrafterInfo info = check_drafter(drafter);
    check_target(target);
    check_pair(info, drafter, target);

    params.no_extra_bufts |= keeps_layout(target);

    // llama.cpp's own: how many rows give logits, and how many a recurrent state can take back
    params.speculative.draft.n_max = choose_depth(params.speculative.dflash2.depth, info);
    make_room_for_rows(params, params.speculative.draft.n_max);
}

}  // namespace dflash2
