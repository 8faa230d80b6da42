#include "dflash2/server.h"

#include "clock.h"
#include "dflash2/errors.h"
#include "gguf_file.h"
#include "pair.h"
#include "server_drafter.h"
#include "server_log.h"
#include "server_report.h"
#include "server_state.h"
#include "speculator.h"

#include <algorithm>
#include <optional>

namespace dflash2 {

namespace {

// The request of a slot, and what the slot drafted in the cycle that runs.
struct ServerSlot {
    std::optional<Sampler> sampler;  // none: the server samples by itself
    Rule                   rule = Rule::match;
    Randoms                randoms{ 0 };
    SequenceAcceptance     acceptance;
    ProposalLearner        proposals;
    std::vector<Token>     text;  // prompt and answer
    Stats                  stats;
    bool                   keep_trace = false;
    std::vector<Cycle>     trace;
    bool                   generates  = false;  // has its first token
    llama_pos              prompt_end = 0;

    llama_pos pos = 0;
    Draft     draft;

    void forget_request() {
        sampler.reset();
        generates = false;
        draft     = {};
    }
};

// Counts on when the server has slept and opens another speculation
Stats & total_of_process() {
    static Stats total;
    return total;
}

}  // namespace

struct ServerSpeculation::Impl {
    Impl(const common_params & params, llama_context * context, const DrafterInfo & info) :
        options(params.speculative.dflash2), path(params.speculative.draft.mparams.path),
        depth(params.speculative.draft.n_max), shared_cache(params.kv_unified), target(context, info.taps),
        slots(params.n_parallel) {}

    void    describe() const;
    int32_t room_in_cache(size_t n_requests) const;
    void    turn_off(const std::exception & error);
    bool    ends(Token token) const { return llama_vocab_is_eog(target.vocab(), token); }
    void    record_cycle(ServerSlot & slot, const Draft & draft, const Verdict & verdict, double seconds);
    void    warn_of_useless_drafter();

    // Whatever goes wrong in the drafter costs the drafts, not the answers
    template <typename Work>
    void guarded(const Work & work) {
        if (off) {
            return;
        }
        try {
            work();
        } catch (const std::exception & error) {
            turn_off(error);
        }
    }

    ServerOptions             options;
    std::string               path;
    int32_t                   depth;
    bool                      shared_cache;
    Target                    target;
    std::unique_ptr<Drafter>  drafter;
    std::optional<Speculator> speculator;
    bool                      off = false;
    std::vector<ServerSlot>   slots;
    Stats &                   total  = total_of_process();
    bool                      warned = false;

    // The cycle that runs
    DepthCycle cycle;
    bool       in_cycle   = false;
    int64_t    start_us   = 0;
    int64_t    drafted_us = 0;
};

std::unique_ptr<ServerSpeculation> ServerSpeculation::open(const common_params & params, llama_context * target) {
    const DrafterInfo info = check_drafter(GgufFile(params.speculative.draft.mparams.path));
    const auto        type = common_context_can_seq_rm(target);
    if (type == COMMON_CONTEXT_SEQ_RM_TYPE_NO || type == COMMON_CONTEXT_SEQ_RM_TYPE_FULL ||
        (type == COMMON_CONTEXT_SEQ_RM_TYPE_RS && (int32_t) llama_n_rs_seq(target) < params.speculative.draft.n_max)) {
        throw ModelMismatch("[load] the state of this target cannot be taken back after rejected tokens: serve it "
                            "without --draft-dflash2");
    }
    const int32_t n_rows = params.n_parallel * (params.speculative.draft.n_max + 1);
    if ((int32_t) llama_n_batch(target) < n_rows) {
        throw std::invalid_argument("[--draft-dflash2] the rows of " + std::to_string(params.n_parallel) +
                                    " slots that verify " + std::to_string(params.speculative.draft.n_max) +
                                    " tokens each, " + std::to_string(n_rows) + ", exceed the batch of " +
                                    std::to_string(llama_n_batch(target)) +
                                    ": give a larger -c, or a smaller -np or --dflash2-depth");
    }

    auto impl = std::make_unique<Impl>(params, target, info);
    try {
        // a target with a recurrent state verifies one slot at a time
        impl->target.reserve_rows(impl->target.has_state() ? 1 : params.n_parallel, params.speculative.draft.n_max + 1);
        impl->drafter = open_server_drafter(params, impl->target, info);
        impl->speculator.emplace(impl->target, *impl->drafter,
                                 Speculator::Options{ impl->depth, impl->options.depth == -1, impl->options.p_min });
    } catch (const Error & error) {
        log_line(LogLevel::error, std::string(error.what()) + "; the server goes on without drafts");
        impl->target.untap_layers();
        return nullptr;
    }
    impl->describe();
    return std::unique_ptr<ServerSpeculation>(new ServerSpeculation(std::move(impl)));
}

void ServerSpeculation::Impl::describe() const {
    const auto mib = [](size_t bytes) {
        return string_format("%.2f MiB", (double) bytes / (1 << 20));
    };
    const DrafterMemory memory = memory_of(*drafter, target);
    log_line(LogLevel::info,
             "drafter " + path + ": weights " + mib(memory.weights) + ", vocabulary " + mib(memory.vocabulary) +
                 ", cache " + mib(memory.cache) + ", compute buffers " + mib(memory.compute) + ", copy of the head " +
                 mib(memory.head) + "; in the target's buffers features " + mib(memory.features) + ", rows to verify " +
                 mib(memory.rows) + "; features that wait take up to " + mib(Drafter::max_backlog_bytes));
    log_line(LogLevel::info, "drafting " + std::string(options.depth == -1 ? "up to " : "") + std::to_string(depth) +
                                 " tokens a cycle, verify rule " + options.verify + ", ops of the drafter " +
                                 drafter->fused_ops());
}

void ServerSpeculation::Impl::turn_off(const std::exception & error) {
    off = true;
    log_line(LogLevel::error, std::string(error.what()) + "; the server goes on without drafts");
    drafter->clear();
    target.untap_layers();
    for (ServerSlot & slot : slots) {
        slot.draft = {};
    }
}

// Draft tokens that each request may have where all slots share the cells of one cache
int32_t ServerSpeculation::Impl::room_in_cache(size_t n_requests) const {
    if (!shared_cache) {
        return depth;
    }
    llama_memory_t memory = llama_get_memory(target.context());
    int64_t        n_free = llama_n_ctx(target.context());
    for (llama_seq_id seq = 0; seq < (llama_seq_id) slots.size(); ++seq) {
        n_free -= llama_memory_seq_pos_max(memory, seq) + 1;
    }
    return (int32_t) std::max<int64_t>(0, n_free / (int64_t) n_requests - 1);
}

ServerSpeculation::ServerSpeculation(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}

ServerSpeculation::~ServerSpeculation() = default;

llama_context * ServerSpeculation::context() const {
    return impl->drafter->context();
}

void ServerSpeculation::flush(int32_t slot) {
    impl->guarded([&] { impl->drafter->inject({ slot }); });
}

void ServerSpeculation::forget(int32_t slot) {
    impl->drafter->drop_backlog(slot);
}

int32_t ServerSpeculation::reuse(int32_t slot, int32_t n_past, llama_pos pos, llama_pos end, bool has_images) {
    Drafter &    drafter = *impl->drafter;
    ServerSlot & own     = impl->slots[slot];
    own.prompt_end       = end;
    if (impl->off) {
        return n_past;
    }
    drafter.trim(slot, pos);
    const llama_pos first = drafter.first_needed(own.prompt_end);
    if (first >= pos) {
        // what it holds would leave a hole before that
        drafter.trim(slot, 0);
        return n_past;
    }
    // an image cannot be evaluated again from its middle on, and text after it is drafted all the same
    if (drafter.reaches(slot, pos, own.prompt_end) || drafter.room(own.prompt_end) == 0 || has_images) {
        return n_past;
    }
    int32_t kept = drafter.end(slot);
    if (kept <= first || !drafter.reaches(slot, kept, own.prompt_end) || !impl->target.reaches(slot, kept)) {
        drafter.trim(slot, 0);
        kept = impl->target.reaches(slot, first) ? first : 0;
    }
    log_line(LogLevel::info, "slot " + std::to_string(slot) + ": evaluating " + std::to_string(n_past - kept) +
                                 " tokens of the prompt again, the drafter does not hold them");
    return kept;
}

void ServerSpeculation::begin(int32_t                        slot,
                              const common_params_sampling & params,
                              common_sampler *               sampler,
                              const std::vector<Token> &     prompt,
                              bool                           trace) {
    if (params.backend_sampling) {
        return;
    }
    ServerSlot & own = impl->slots[slot];
    own.sampler.emplace(params, impl->target.model(), sampler, prompt);
    own.rule              = choose_rule(impl->options.verify, *own.sampler);
    own.randoms           = Randoms(common_sampler_get_seed(sampler));
    own.proposals         = {};
    own.text              = prompt;
    own.acceptance        = {};
    own.stats             = {};
    own.stats.verify_rule = name(own.rule);
    own.stats.fused_ops   = impl->drafter->fused_ops();
    own.keep_trace        = trace;
    own.trace.clear();
}

void ServerSpeculation::end(int32_t slot) {
    impl->slots[slot].forget_request();
}

bool ServerSpeculation::runs(int32_t slot) const {
    return impl->slots[slot].sampler.has_value();
}

void ServerSpeculation::draft(const std::vector<ServerRequest> & requests, size_t n_processing) {
    impl->in_cycle = false;
    impl->cycle    = {};
    for (ServerSlot & slot : impl->slots) {
        slot.draft = {};
    }
    impl->guarded([&] {
        impl->in_cycle = true;
        impl->start_us = ggml_time_us();

        const bool                       cut  = impl->target.has_state() && n_processing > 1;
        const int32_t                    room = cut ? 0 : impl->room_in_cache(requests.size());
        std::vector<Speculator::Request> candidates;
        for (const ServerRequest & request : requests) {
            ServerSlot & slot = impl->slots[request.slot];
            slot.pos          = request.pos;
            candidates.push_back({ { request.slot, request.pos, request.anchor },
                                   slot.sampler ? std::clamp(request.room, 0, room) : 0,
                                   &slot.acceptance,
                                   slot.sampler ? &*slot.sampler : nullptr,
                                   slot.rule,
                                   &slot.randoms,
                                   &slot.proposals,
                                   &slot.text,
                                   [this](Token token) { return impl->ends(token); } });
        }
        std::vector<Draft> drafts = impl->speculator->draft(candidates, impl->cycle);
        for (size_t i = 0; i < requests.size(); ++i) {
            *requests[i].draft                  = drafts[i].tokens;
            impl->slots[requests[i].slot].draft = std::move(drafts[i]);
        }
        impl->drafted_us = ggml_time_us();
    });
    impl->in_cycle &= !impl->off;
}

bool ServerSpeculation::wants_whole_decode() const {
    return impl->target.has_state() && std::any_of(impl->slots.begin(), impl->slots.end(),
                                                   [](const ServerSlot & slot) { return !slot.draft.tokens.empty(); });
}

void ServerSpeculation::decoded(const common_batch & batch) {
    const int64_t now = ggml_time_us();
    if (batch.has_embd() && batch.n_pos > 1) {
        return;  // rows of an image that share one position in time: drafts look at the text after it
    }
    impl->guarded([&] {
        bool found     = false;
        bool only_ours = true;
        for (int32_t row = 0; row < batch.size(); ++row) {
            const llama_seq_id seq       = batch.tokens[row].seq_id;
            const llama_pos    pos       = batch.tokens[row].pos[0];
            const ServerSlot & slot      = impl->slots[seq];
            const bool         in_prompt = pos < slot.prompt_end;
            only_ours &= !in_prompt;
            if (in_prompt && pos < impl->drafter->first_needed(slot.prompt_end)) {
                continue;
            }
            if (!found) {
                impl->target.find_features();
                found = true;
            }
            if (!slot.draft.tokens.empty()) {
                continue;  // decide() stages the rows that are accepted
            }
            if (in_prompt) {
                impl->drafter->stage_prompt(seq, pos, impl->target, row);
            } else {
                impl->drafter->stage(seq, pos, impl->target, row);
            }
        }
        if (impl->in_cycle && impl->cycle.verify.rows == 0 && only_ours) {
            impl->cycle.verify = { batch.size(), 1e-6 * (double) (now - impl->drafted_us) };
        }
        impl->drafter->inject_prompts();
    });
}

std::vector<Token> ServerSpeculation::decide(int32_t id, int32_t row) {
    const int64_t start = ggml_time_us();
    ServerSlot &  slot  = impl->slots[id];
    const Draft   draft = std::move(slot.draft);
    slot.draft          = {};

    const Block block   = { draft, [&](int32_t i) { return impl->target.logits(row + i); },
                            [this](Token token) { return impl->ends(token); },
                            [&](size_t i, const Law & p) {
                              slot.proposals.record(draft.slots[i], p, slot.sampler->temperature());
                          } };
    Verdict     verdict = verify(slot.rule, *slot.sampler, block, slot.randoms);
    if (verdict.tokens.back() == no_token) {
        // the chain leaves nothing, which ends the text
        verdict.tokens.back() = llama_vocab_eos(impl->target.vocab());
        if (verdict.tokens.back() == LLAMA_TOKEN_NULL) {
            throw Error("[engine] sampler chain and grammar leave no token, and the model has none that ends the text");
        }
    }
    slot.text.insert(slot.text.end(), verdict.tokens.begin(), verdict.tokens.end());
    if (!slot.generates) {
        slot.generates = true;
        return verdict.tokens;
    }
    impl->guarded([&] {
        // the last token has no row yet
        for (size_t i = 0; !draft.tokens.empty() && i < verdict.tokens.size(); ++i) {
            impl->drafter->stage(id, slot.pos + (llama_pos) i, impl->target, row + (int32_t) i);
        }
    });
    impl->record_cycle(slot, draft, verdict, seconds_since(start));
    return verdict.tokens;
}

void ServerSpeculation::Impl::record_cycle(ServerSlot &    slot,
                                           const Draft &   draft,
                                           const Verdict & verdict,
                                           double          seconds) {
    const auto n_draft = (int32_t) draft.tokens.size();
    slot.stats.record_cycle(n_draft, verdict.n_accepted);
    slot.stats.inject_seconds += cycle.inject.seconds;
    slot.stats.draft_seconds += cycle.draft.seconds;
    slot.stats.verify_seconds += cycle.verify.seconds;
    slot.stats.sample_seconds += seconds;
    total.record_cycle(n_draft, verdict.n_accepted);
    total.sample_seconds += seconds;
    if (slot.keep_trace) {
        slot.trace.push_back({ slot.pos, n_draft, draft.tokens, verdict.n_accepted, verdict.tokens.back() });
    }
    if (in_cycle) {
        DepthCycle::Outcome outcome = { &slot.acceptance, draft.confidence, n_draft, verdict.n_accepted };
        if ((int32_t) verdict.tokens.size() == verdict.n_accepted) {
            // what the end of the text cut off was not rejected
            outcome.n_proposed = verdict.n_accepted;
            outcome.confidences.resize(verdict.n_accepted);
        }
        cycle.outcomes.push_back(std::move(outcome));
    }
}

void ServerSpeculation::end_cycle() {
    if (!impl->in_cycle) {
        return;
    }
    DepthCycle & cycle = impl->cycle;
    impl->in_cycle     = false;
    impl->guarded([&] { impl->speculator->inject_overfull(cycle); });
    const double passes = cycle.inject.seconds + cycle.draft.seconds + cycle.verify.seconds;
    cycle.host_seconds  = std::max(0.0, seconds_since(impl->start_us) - passes);
    impl->speculator->record(cycle);

    impl->total.inject_seconds += cycle.inject.seconds;
    impl->total.draft_seconds += cycle.draft.seconds;
    impl->total.verify_seconds += cycle.verify.seconds;
    impl->warn_of_useless_drafter();
}

void ServerSpeculation::Impl::warn_of_useless_drafter() {
    const std::string complaint = warned ? "" : complaint_of_drafter(total, /*one_in=*/20);
    if (!complaint.empty()) {
        warned = true;
        log_line(LogLevel::warning,
                 complaint +
                     ". It was made for another target or chat template, its file is damaged, or nothing like these "
                     "prompts was in its training; `dflash2 inspect` compares the pair");
    }
}

void ServerSpeculation::save(int32_t slot, const std::string & path, const std::vector<Token> & tokens) const {
    impl->guarded([&] { impl->drafter->inject({ slot }); });
    try {
        save_drafter_state(*impl->drafter, impl->path, slot, path, tokens);
    } catch (const Error & error) {
        log_line(LogLevel::warning,
                 std::string(error.what()) +
                     "; after a restore the part of the prompt that the drafter needs is evaluated again");
    }
}

void ServerSpeculation::restore(int32_t slot, const std::string & path, const std::vector<Token> & tokens) {
    if (!load_drafter_state(*impl->drafter, impl->path, slot, path, tokens)) {
        log_line(LogLevel::warning, "slot " + std::to_string(slot) + ": " + path +
                                        ".dflash2 is missing or belongs to something else: the next request evaluates "
                                        "the part of the prompt that the drafter needs again");
    }
}

common_json ServerSpeculation::timings(int32_t slot) const {
    const ServerSlot & own = impl->slots[slot];
    return own.sampler ? timings_json(own.stats, own.keep_trace ? &own.trace : nullptr) : common_json();
}

std::string ServerSpeculation::metrics() const {
    return metrics_text(impl->total);
}

common_json ServerSpeculation::props() const {
    const DrafterInfo & info   = impl->drafter->info();
    const DrafterMemory memory = memory_of(*impl->drafter, impl->target);
    const common_json   depth  = impl->options.depth == -1 ? common_json("auto") : common_json(impl->depth);
    return {
        { "draft", impl->path },
        { "depth", depth },
        { "max_depth", impl->depth },
        { "verify", impl->options.verify },
        { "p_min", impl->options.p_min },
        { "block_size", info.block_size },
        { "window", info.window },
        { "n_ctx", llama_n_ctx_seq(impl->drafter->context()) },
        { "fused_ops", impl->drafter->fused_ops() },
        { "memory",
          { { "weights", memory.weights },
            { "vocabulary", memory.vocabulary },
            { "cache", memory.cache },
            { "compute", memory.compute },
            { "head", memory.head },
            { "features", memory.features },
            { "rows", memory.rows } } },
    };
}

}  // namespace dflash2
