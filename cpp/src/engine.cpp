#include "dflash2/engine.h"

#include "chat_prompt.h"
#include "dflash2/errors.h"
#include "drafter.h"
#include "logging.h"
#include "loop.h"
#include "pair.h"
#include "sampling_params.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace dflash2 {

namespace {

void check_options(const EngineOptions & options) {
    if (options.n_threads > GGML_MAX_N_THREADS) {
        throw std::invalid_argument("[engine] n_threads is " + std::to_string(options.n_threads) +
                                    ", ggml runs at most " + std::to_string(GGML_MAX_N_THREADS));
    }
    const auto at_least = [](const char * name, int32_t value, int32_t low) {
        if (value < low) {
            throw std::invalid_argument(std::string("[engine] ") + name + " is " + std::to_string(value) +
                                        ", it must be at least " + std::to_string(low));
        }
    };
    at_least("n_ctx", options.n_ctx, 0);
    at_least("n_batch", options.n_batch, 1);
    at_least("n_threads", options.n_threads, 0);
    at_least("n_gpu_layers", options.n_gpu_layers, -1);
    at_least("n_parallel", options.n_parallel, 1);
    if ((size_t) options.n_parallel > llama_max_parallel_sequences()) {
        throw std::invalid_argument("[engine] n_parallel is " + std::to_string(options.n_parallel) +
                                    ", llama.cpp decodes at most " + std::to_string(llama_max_parallel_sequences()) +
                                    " sequences together");
    }
    if (options.depth != -1 && options.depth < 1) {
        throw std::invalid_argument("[engine] depth is " + std::to_string(options.depth) +
                                    ", it must be at least 1, or automatic");
    }
    const std::array<const char *, 4> graphs = { "auto", "fused", "composed", "upstream" };
    if (std::find(graphs.begin(), graphs.end(), options.fused_ops) == graphs.end()) {
        throw std::invalid_argument("[engine] fused_ops is \"" + options.fused_ops +
                                    "\", it must be auto, fused, composed or upstream");
    }
    if (options.draft_head != "auto" && options.draft_head != "target" && options.draft_head != "q4_0") {
        throw std::invalid_argument("[engine] draft_head is \"" + options.draft_head +
                                    "\", it must be auto, target or q4_0");
    }
    if (options.draft_head == "q4_0" && options.fused_ops == "upstream") {
        throw std::invalid_argument(
            "[engine] draft_head is \"q4_0\", but the upstream graph of fused_ops has the target's");
    }
    if (!(options.p_min >= 0 && options.p_min <= 1)) {
        throw std::invalid_argument("[engine] p_min is " + std::to_string(options.p_min) + ", it must be from 0 to 1");
    }
    if (options.verify != "auto" && options.verify != "reject" && options.verify != "block" &&
        options.verify != "match") {
        throw std::invalid_argument("[engine] verify is '" + options.verify +
                                    "', it must be auto, reject, block or match");
    }
}

Drafter::Params
drafter_params(const EngineOptions & options, const GgufFile & file, BackendParams & backend, const Target & target) {
    Drafter::Params params{ options.draft, backend.model_params(file), backend.context_params(), options.fused_ops,
                            options.draft_head };
    params.context.n_seq_max = options.n_parallel;
    params.context.n_ctx     = llama_n_ctx(target.context());
    // Quantized drafter caches lose acceptance and save little: a drafter has few layers
    params.context.type_k = backend.cache_type == GGML_TYPE_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    params.context.type_v = params.context.type_k;
    return params;
}

void check_tokens(const std::string & tag, const std::vector<Token> & tokens, const Target & target) {
    for (const Token token : tokens) {
        if (token < 0 || token >= target.n_vocab()) {
            throw std::invalid_argument("[" + tag + "] token id " + std::to_string(token) +
                                        " is outside the vocabulary, ids go from 0 to " +
                                        std::to_string(target.n_vocab() - 1));
        }
    }
}

void check_request(const std::vector<Token> & prompt, const SamplingOptions & options, const Target & target) {
    if (prompt.empty()) {
        throw std::invalid_argument("[prompt] the prompt is empty: at least one token is needed");
    }
    if ((int32_t) prompt.size() >= target.n_ctx()) {
        throw std::invalid_argument("[prompt] the prompt has " + std::to_string(prompt.size()) + " tokens, n_ctx is " +
                                    std::to_string(target.n_ctx()) +
                                    ": shorten it or open the engine with a larger n_ctx");
    }
    check_tokens("prompt", prompt, target);
    check_sampling(options, target);
}

}  // namespace

struct Engine::Impl {
    explicit Impl(const EngineOptions & options);

    static bool is_interrupted(void * impl);

    int32_t                       n_parallel;
    int32_t                       depth = 0;
    std::function<bool()>         interrupted;
    std::unique_ptr<Target>       target;
    std::unique_ptr<Drafter>      drafter;  // null: plain decoding
    std::unique_ptr<Loop>         loop;
    std::unique_ptr<ChatTemplate> chat;
};

Engine::Impl::Impl(const EngineOptions & options) : n_parallel(options.n_parallel) {
    start_llama();
    check_options(options);
    BackendParams backend(options);

    const GgufFile target_file(options.model);
    check_target(target_file);
    if (options.draft.empty()) {
        target = std::make_unique<Target>(options, target_file, backend, 0, std::vector<int32_t>());
    } else {
        const GgufFile    drafter_file(options.draft);
        const DrafterInfo info = check_drafter(drafter_file);
        check_pair(info, drafter_file, target_file);
        depth  = choose_depth(options.depth, info);
        target = std::make_unique<Target>(options, target_file, backend, depth, info.taps);
        drafter =
            std::make_unique<Drafter>(drafter_params(options, drafter_file, backend, *target), *target, info, depth);
        llama_set_abort_callback(drafter->context(), is_interrupted, this);
        log_line(LogLevel::info, "drafting " + std::string(options.depth == -1 ? "up to " : "") +
                                     std::to_string(depth) + " tokens a cycle, verify rule " + options.verify +
                                     ", ops of the drafter " + drafter->fused_ops());
    }
    llama_set_abort_callback(target->context(), is_interrupted, this);
    loop = std::make_unique<Loop>(
        *target, drafter.get(),
        Loop::Options{ depth, options.depth == -1, options.p_min, options.verify, n_parallel, options.n_batch });
    chat = std::make_unique<ChatTemplate>(target->model());
}

bool Engine::Impl::is_interrupted(void * impl) {
    const auto & check = static_cast<Impl *>(impl)->interrupted;
    return check && check();
}

Engine::Engine(const EngineOptions & options) : impl(std::make_unique<Impl>(options)) {}

Engine::~Engine() = default;

int64_t Engine::submit(const std::vector<Token> & prompt, const SamplingOptions & sampling) {
    check_request(prompt, sampling, *impl->target);
    return impl->loop->submit(prompt, sampling);
}

std::vector<Chunk> Engine::step() {
    return impl->loop->step();
}

void Engine::set_interrupt_check(std::function<bool()> check) {
    impl->interrupted = std::move(check);
}

void Engine::cancel(int64_t request_id) {
    impl->loop->cancel(request_id);
}

size_t Engine::n_active() const {
    return impl->loop->n_active();
}

std::vector<Token> Engine::tokenize(std::string_view text, bool add_special) const {
    return common_tokenize(impl->target->vocab(), std::string(text), add_special, /*parse_special=*/true);
}

std::string Engine::detokenize(const std::vector<Token> & tokens) const {
    check_tokens("detokenize", tokens, *impl->target);
    return common_detokenize(impl->target->vocab(), tokens, /*special=*/true);
}

ChatPrompt Engine::apply_chat_template(const std::string & messages, const std::string & kwargs) const {
    return impl->chat->apply(messages, kwargs);
}

Lattice Engine::draft_lattice(const std::vector<float> & features, Token anchor) {
    if (!impl->drafter || impl->loop->n_active() > 0) {
        throw std::invalid_argument(impl->drafter ? "[draft_lattice] requests are running: let them end first" :
                                                    "[draft_lattice] the engine has no drafter");
    }
    const size_t width = impl->target->n_features();
    if (features.size() % width != 0) {
        throw std::invalid_argument("[draft_lattice] " + std::to_string(features.size()) +
                                    " numbers are given, rows of " + std::to_string(width) + " are needed");
    }
    const auto n_tokens = (int32_t) (features.size() / width);
    if (impl->drafter->room(n_tokens) < impl->depth) {
        throw std::invalid_argument("[draft_lattice] " + std::to_string(n_tokens) +
                                    " tokens and a block do not fit in n_ctx, which is " +
                                    std::to_string(impl->target->n_ctx()));
    }
    check_tokens("draft_lattice", { anchor }, *impl->target);
    // nothing of it may stay, also when it fails half way
    struct Emptied {
        Loop & loop;
        explicit Emptied(Loop & loop) : loop(loop) { loop.reset(); }
        ~Emptied() { loop.reset(); }
    } const emptied(*impl->loop);

    for (int32_t pos = 0; pos < n_tokens; ++pos) {
        impl->drafter->stage(0, pos, features.data() + pos * width);
    }
    impl->drafter->inject({ 0 });
    return impl->drafter->draft({ { 0, n_tokens, anchor } }, impl->depth).front();
}

Stats Engine::stats() const {
    return impl->loop->stats();
}

void Engine::reset_stats() {
    impl->loop->reset_stats();
}

int32_t Engine::n_ctx() const {
    return impl->target->n_ctx();
}

int32_t Engine::n_parallel() const {
    return impl->n_parallel;
}

int32_t Engine::n_vocab() const {
    return impl->target->n_vocab();
}

int32_t Engine::block_size() const {
    return impl->drafter ? impl->drafter->info().block_size : 0;
}

int32_t Engine::depth() const {
    return impl->depth;
}

int32_t Engine::mask_token() const {
    return impl->drafter ? impl->drafter->info().mask_token : -1;
}

std::vector<int32_t> Engine::tap_layers() const {
    std::vector<int32_t> layers = impl->target->taps();
    for (int32_t & layer : layers) {
        layer -= 1;
    }
    return layers;
}

std::vector<std::string> Engine::devices() const {
    return model_devices(impl->target->model());
}

}  // namespace dflash2
