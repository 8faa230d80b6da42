#include "dflash2/engine.h"

#include "chat_prompt.h"
#include "dflash2/errors.h"
#include "drafter.h"
#include "lattice.h"
#include "logging.h"
#include "pair.h"
#include "sequence.h"
#include "verify.h"

#include <algorithm>
#include <deque>
#include <stdexcept>

namespace dflash2 {

namespace {

using SequencePtr = std::unique_ptr<Sequence>;

double seconds_since(int64_t start_us) {
    return 1e-6 * (double) (ggml_time_us() - start_us);
}

void check_options(const EngineOptions & options) {
    const auto at_least = [](const char * name, int32_t value, int32_t low) {
        if (value < low) {
            throw std::invalid_argument(std::string("[engine] ") + name + " is " + std::to_string(value) + ", it must be at least " + std::to_string(low));
        }
    };
    at_least("n_ctx", options.n_ctx, 0);
    at_least("n_batch", options.n_batch, 1);
    at_least("n_threads", options.n_threads, 0);
    at_least("n_gpu_layers", options.n_gpu_layers, -1);
    at_least("n_parallel", options.n_parallel, 1);
    if ((size_t) options.n_parallel > llama_max_parallel_sequences()) {
        throw std::invalid_argument("[engine] n_parallel is " + std::to_string(options.n_parallel) + ", llama.cpp decodes at most " + std::to_string(llama_max_parallel_sequences()) + " sequences together");
    }
    if (options.depth != -1 && options.depth < 1) {
        throw std::invalid_argument("[engine] depth is " + std::to_string(options.depth) + ", it must be at least 1, or automatic");
    }
    if (options.verify != "auto" && options.verify != "match") {
        throw std::invalid_argument("[engine] verify is '" + options.verify + "', it must be auto or match");
    }
}

// Draft tokens per cycle. Automatic: all the drafter was trained for
int32_t choose_depth(const EngineOptions & options, const DrafterInfo & info) {
    const int32_t most = info.block_size - 1;
    if (options.depth > most) {
        log_line(LogLevel::warning, "depth " + std::to_string(options.depth) + " is more than the drafter's block of " + std::to_string(info.block_size) + " allows: " + std::to_string(most) + " is used");
    }
    return options.depth == -1 ? most : std::min(options.depth, most);
}

}  // namespace

struct Engine::Impl {
    explicit Impl(const EngineOptions & options);

    void                     check_request(const std::vector<Token> & prompt, const SamplingOptions & options) const;
    std::vector<Chunk>       step();
    void                     admit();
    void                     reuse_prefix(Sequence & sequence);
    void                     evaluate_prompts(std::vector<Chunk> & chunks);
    void                     run_cycle(std::vector<Chunk> & chunks);
    std::vector<std::vector<Token>> draft(const std::vector<Sequence *> & sequences);
    Chunk                    emit(Sequence & sequence, const std::vector<Token> & tokens, int32_t row);
    void                     keep(Sequence & sequence, int32_t row, int32_t n_rows);
    void                     retire(std::vector<Chunk> & chunks);
    void                     reset();
    void                     warn_of_useless_drafter();
    Stats                    new_stats() const;

    int32_t                      n_parallel;
    int32_t                      n_prefill;  // prompt tokens per decode
    int32_t                      depth = 0;
    std::function<bool()>        interrupted;
    std::unique_ptr<Target>      target;
    std::unique_ptr<Drafter>     drafter;  // null: plain decoding
    std::unique_ptr<ChatTemplate> chat;

    int64_t                         next_id = 1;
    std::deque<SequencePtr>         sequences;  // in order of request; the first n_parallel that fit have a slot
    std::vector<std::vector<Token>> slots;      // tokens in the caches of each slot, kept for the next request
    Stats                           total;
    bool                            warned = false;
};

Engine::Impl::Impl(const EngineOptions & options) : n_parallel(options.n_parallel), n_prefill(options.n_batch) {
    start_llama();
    check_options(options);
    BackendParams backend(options);

    const GgufFile target_file(options.model);
    check_target(target_file);
    if (options.draft.empty()) {
        target = std::make_unique<Target>(options, backend, 0, std::vector<int32_t>());
    } else {
        const GgufFile    drafter_file(options.draft);
        const DrafterInfo info = check_drafter(drafter_file);
        check_pair(info, drafter_file, target_file);
        depth   = choose_depth(options, info);
        target  = std::make_unique<Target>(options, backend, depth, info.taps);
        drafter = std::make_unique<Drafter>(options, backend, *target, info, depth);
        log_line(LogLevel::info, "drafting " + std::to_string(depth) + " tokens a cycle, verify rule match");
    }
    chat = std::make_unique<ChatTemplate>(target->model());
    slots.resize(n_parallel);
    total = new_stats();

    const auto check = [](void * data) { return static_cast<Impl *>(data)->interrupted && static_cast<Impl *>(data)->interrupted(); };
    llama_set_abort_callback(target->context(), check, this);
    if (drafter) {
        llama_set_abort_callback(drafter->context(), check, this);
    }
}

Stats Engine::Impl::new_stats() const {
    Stats stats;
    stats.verify_rule = drafter ? "match" : "none";
    stats.fused_ops   = drafter ? "composed" : "none";
    return stats;
}

void Engine::Impl::check_request(const std::vector<Token> & prompt, const SamplingOptions & options) const {
    if (prompt.empty()) {
        throw std::invalid_argument("[prompt] the prompt is empty: at least one token is needed");
    }
    if ((int32_t) prompt.size() >= target->n_ctx()) {
        throw std::invalid_argument("[prompt] the prompt has " + std::to_string(prompt.size()) + " tokens, n_ctx is " + std::to_string(target->n_ctx()) + ": shorten it or open the engine with a larger n_ctx");
    }
    for (const Token token : prompt) {
        if (token < 0 || token >= target->n_vocab()) {
            throw std::invalid_argument("[prompt] token id " + std::to_string(token) + " is outside the vocabulary, ids go from 0 to " + std::to_string(target->n_vocab() - 1));
        }
    }
    check_sampling(options, *target);
}

// ---- the loop

std::vector<Chunk> Engine::Impl::step() {
    std::vector<Chunk> chunks;
    try {
        retire(chunks);
        admit();
        run_cycle(chunks);
        evaluate_prompts(chunks);
        retire(chunks);
    } catch (...) {
        reset();
        throw;
    }
    return chunks;
}

// Gives free slots to the requests that wait longest, each the one that holds most of its prompt already
void Engine::Impl::admit() {
    std::vector<bool> taken(n_parallel, false);
    for (const SequencePtr & sequence : sequences) {
        if (sequence->slot >= 0) {
            taken[sequence->slot] = true;
        }
    }
    for (const SequencePtr & sequence : sequences) {
        if (sequence->slot >= 0) {
            continue;
        }
        int32_t best      = -1;
        size_t  best_size = 0;
        for (int32_t slot = 0; slot < n_parallel; ++slot) {
            const auto & held = slots[slot];
            const size_t size = std::mismatch(held.begin(), held.end(), sequence->tokens.begin(), sequence->tokens.end()).first - held.begin();
            if (!taken[slot] && (best < 0 || size > best_size)) {
                best      = slot;
                best_size = size;
            }
        }
        if (best < 0) {
            return;
        }
        taken[best]      = true;
        sequence->slot   = best;
        sequence->n_past = (int32_t) std::min(best_size, sequence->tokens.size() - 1);  // one row must give logits
        reuse_prefix(*sequence);
    }
}

// Cuts the caches of the slot back to the common prefix, or empties them where a cache cannot go back there
void Engine::Impl::reuse_prefix(Sequence & sequence) {
    const llama_seq_id slot   = sequence.slot;
    const int32_t      n_past = sequence.n_past;

    const bool reachable = n_past > 0 && target->reaches(slot, n_past) && (!drafter || drafter->reaches(slot, n_past));
    if (!reachable || !target->trim(slot, n_past) || (drafter && !drafter->trim(slot, n_past))) {
        target->trim(slot, 0);
        if (drafter) {
            drafter->trim(slot, 0);
        }
        sequence.n_past = 0;
    }
    slots[slot].assign(sequence.tokens.begin(), sequence.tokens.begin() + sequence.n_past);
    sequence.stats.cached_tokens = sequence.n_past;
    total.cached_tokens += sequence.n_past;
}

// One decode of at most n_prefill prompt tokens; the last one of a prompt gives the first token of the answer
void Engine::Impl::evaluate_prompts(std::vector<Chunk> & chunks) {
    struct Part {
        Sequence * sequence;
        int32_t    row;
        int32_t    n_rows;
    };

    common_batch      batch(target->context());
    std::vector<Part> parts;
    for (const SequencePtr & sequence : sequences) {
        const int32_t n_rows = std::min(n_prefill - batch.size(), sequence->n_prompt - sequence->n_past);
        if (sequence->slot < 0 || n_rows <= 0) {
            continue;
        }
        parts.push_back({ sequence.get(), batch.size(), n_rows });
        for (int32_t i = 0; i < n_rows; ++i) {
            const int32_t pos = sequence->n_past + i;
            batch.add(sequence->tokens[pos], pos, sequence->slot, pos == sequence->n_prompt - 1);
        }
    }
    if (parts.empty()) {
        return;
    }

    const int64_t start = ggml_time_us();
    target->decode(batch);
    for (const Part & part : parts) {
        keep(*part.sequence, part.row, part.n_rows);
    }
    if (drafter) {
        drafter->inject();
    }
    for (const Part & part : parts) {
        Sequence & sequence = *part.sequence;
        if (!sequence.in_prompt()) {
            const int32_t last  = part.row + part.n_rows - 1;
            const Token   token = sequence.sampler.sample(*target, last);
            sequence.sampler.accept(token);
            sequence.first_token_us = ggml_time_us();
            chunks.push_back(emit(sequence, { token }, last));
        }
    }
    const double seconds = seconds_since(start);
    total.prompt_seconds += seconds;
    for (const Part & part : parts) {
        part.sequence->stats.prompt_seconds += seconds;
    }
}

// Draft, verify, commit: one cycle of all sequences that generate
void Engine::Impl::run_cycle(std::vector<Chunk> & chunks) {
    std::vector<Sequence *> running;
    for (const SequencePtr & sequence : sequences) {
        if (sequence->slot >= 0 && !sequence->in_prompt() && sequence->finish_reason.empty()) {
            running.push_back(sequence.get());
        }
    }
    if (running.empty()) {
        return;
    }

    const int64_t                         start  = ggml_time_us();
    const std::vector<std::vector<Token>> drafts = draft(running);

    const int64_t        verify_start = ggml_time_us();
    common_batch         batch(target->context());
    std::vector<int32_t> rows;
    for (size_t i = 0; i < running.size(); ++i) {
        const Sequence & sequence = *running[i];
        rows.push_back(batch.size());
        batch.add(sequence.tokens.back(), sequence.n_past, sequence.slot, true);
        for (size_t j = 0; j < drafts[i].size(); ++j) {
            batch.add(drafts[i][j], sequence.n_past + 1 + (int32_t) j, sequence.slot, true);
        }
    }
    target->decode(batch);
    llama_synchronize(target->context());
    const double verify_seconds = seconds_since(verify_start);

    const int64_t sample_start = ggml_time_us();
    for (size_t i = 0; i < running.size(); ++i) {
        Sequence &    sequence = *running[i];
        const int32_t position = sequence.n_past;

        const Verdict verdict = verify_match(sequence.sampler, *target, rows[i], drafts[i], [&](Token token) {
            return sequence.is_stop_token(token) || llama_vocab_is_eog(target->vocab(), token);
        });
        Chunk chunk      = emit(sequence, verdict.tokens, rows[i]);
        chunk.n_accepted = std::min(verdict.n_accepted, (int32_t) chunk.token_ids.size());
        keep(sequence, rows[i], 1 + chunk.n_accepted);
        if (!target->trim(sequence.slot, sequence.n_past)) {
            throw Error("[engine] the target's cache cannot take back rejected tokens");
        }

        const auto n_draft = (int32_t) drafts[i].size();
        sequence.stats.record_cycle(n_draft, chunk.n_accepted);
        total.record_cycle(n_draft, chunk.n_accepted);
        if (sequence.options.trace) {
            chunk.cycle = Cycle{ position, n_draft, drafts[i], chunk.n_accepted, chunk.token_ids.back() };
        }
        chunks.push_back(std::move(chunk));
    }
    const double sample_seconds = seconds_since(sample_start);

    const int64_t inject_start = ggml_time_us();
    if (drafter) {
        drafter->inject();
    }
    const double inject_seconds = seconds_since(inject_start);

    const auto record = [&](Stats & stats) {
        stats.draft_seconds += 1e-6 * (double) (verify_start - start);
        stats.verify_seconds += verify_seconds;
        stats.sample_seconds += sample_seconds;
        stats.inject_seconds += inject_seconds;
    };
    record(total);
    total.generation_seconds += seconds_since(start);
    for (Sequence * sequence : running) {
        record(sequence->stats);
    }
    warn_of_useless_drafter();
}

// Draft tokens of each sequence, none where there is no room for any
std::vector<std::vector<Token>> Engine::Impl::draft(const std::vector<Sequence *> & running) {
    std::vector<std::vector<Token>> drafts(running.size());
    std::vector<Drafter::Block>     blocks;
    std::vector<size_t>             owners;
    for (size_t i = 0; drafter && i < running.size(); ++i) {
        const Sequence & sequence = *running[i];
        if (sequence.room(target->n_ctx()) > 0) {
            blocks.push_back({ sequence.slot, sequence.n_past, sequence.tokens.back() });
            owners.push_back(i);
        }
    }
    if (blocks.empty()) {
        return drafts;
    }
    const std::vector<Lattice> lattices = drafter->draft(blocks);
    for (size_t i = 0; i < blocks.size(); ++i) {
        drafts[owners[i]] = greedy_walk(lattices[i], std::min(depth, running[owners[i]]->room(target->n_ctx())));
    }
    return drafts;
}

// Appends tokens to the answer until one of them ends it. row: the one that gave the first of them
Chunk Engine::Impl::emit(Sequence & sequence, const std::vector<Token> & tokens, int32_t row) {
    Chunk chunk;
    chunk.request_id = sequence.id;
    for (const Token token : tokens) {
        sequence.tokens.push_back(token);
        chunk.token_ids.push_back(token);
        if (sequence.options.logprobs >= 0) {
            const int32_t source = row + (int32_t) chunk.token_ids.size() - 1;
            chunk.logprobs.push_back(row_logprobs(*target, source, token, sequence.options.logprobs));
        }

        const bool ends = sequence.is_stop_token(token) || (!sequence.options.ignore_eos && llama_vocab_is_eog(target->vocab(), token));
        if (!ends) {
            chunk.text += sequence.text.push(common_token_to_piece(target->vocab(), token, /*special=*/false));
        }
        if (ends || sequence.text.stopped()) {
            sequence.finish_reason = "stop";
        } else if (sequence.n_generated() >= sequence.options.max_tokens || (int32_t) sequence.tokens.size() > target->n_ctx()) {
            sequence.finish_reason = "length";
        }
        if (!sequence.finish_reason.empty()) {
            chunk.text += sequence.text.finish();
            break;
        }
    }
    sequence.stats.generated_tokens += (int64_t) chunk.token_ids.size();
    total.generated_tokens += (int64_t) chunk.token_ids.size();
    return chunk;
}

// Makes n_rows evaluated rows of a sequence final: their features go to the drafter, their tokens count as cached
void Engine::Impl::keep(Sequence & sequence, int32_t row, int32_t n_rows) {
    const llama_pos needed = drafter && sequence.in_prompt() ? drafter->first_needed(sequence.n_prompt) : 0;
    for (int32_t i = 0; i < n_rows; ++i) {
        const llama_pos pos = sequence.n_past + i;
        slots[sequence.slot].push_back(sequence.tokens[pos]);
        if (drafter && pos >= needed) {
            drafter->stage(sequence.slot, pos, *target, row + i);
        }
    }
    sequence.n_past += n_rows;
}

// Takes the requests that have ended out of the queue and completes their last chunk, or makes one
void Engine::Impl::retire(std::vector<Chunk> & chunks) {
    for (auto it = sequences.begin(); it != sequences.end();) {
        Sequence & sequence = **it;
        if (sequence.finish_reason.empty() && sequence.cancelled) {
            Chunk chunk;
            chunk.request_id       = sequence.id;
            chunk.text             = sequence.text.finish();
            sequence.finish_reason = "cancelled";
            chunks.push_back(std::move(chunk));
        }
        if (sequence.finish_reason.empty()) {
            ++it;
            continue;
        }
        if (sequence.first_token_us > 0) {
            sequence.stats.generation_seconds = seconds_since(sequence.first_token_us);
        }
        const auto last     = std::find_if(chunks.rbegin(), chunks.rend(), [&](const Chunk & chunk) { return chunk.request_id == sequence.id; });
        last->finish_reason = sequence.finish_reason;
        last->stats         = sequence.stats;
        it                  = sequences.erase(it);
    }
}

// After a failure nothing is known of the caches
void Engine::Impl::reset() {
    sequences.clear();
    target->clear();
    if (drafter) {
        drafter->clear();
    }
    slots.assign(n_parallel, {});
}

void Engine::Impl::warn_of_useless_drafter() {
    constexpr int64_t enough = 500;  // draft tokens to judge by
    if (!warned && total.draft_tokens >= enough && total.acceptance_rate() < 0.02) {
        warned = true;
        log_line(LogLevel::warning, "only " + std::to_string(total.accepted_tokens) + " of " + std::to_string(total.draft_tokens) + " draft tokens were accepted: the drafter does not fit this target or these prompts");
    }
}

// ---- the public face

Engine::Engine(const EngineOptions & options) : impl(std::make_unique<Impl>(options)) {}

Engine::~Engine() = default;

int64_t Engine::submit(const std::vector<Token> & prompt, const SamplingOptions & sampling) {
    impl->check_request(prompt, sampling);
    const int64_t id = impl->next_id++;
    impl->sequences.push_back(std::make_unique<Sequence>(Sequence{
        id, sampling, Sampler(sampling, *impl->target, prompt), TextStream(sampling.stop), impl->new_stats(), prompt, (int32_t) prompt.size() }));
    impl->sequences.back()->stats.prompt_tokens = (int64_t) prompt.size();
    impl->total.prompt_tokens += (int64_t) prompt.size();
    return id;
}

std::vector<Chunk> Engine::step() {
    return impl->step();
}

void Engine::set_interrupt_check(std::function<bool()> check) {
    impl->interrupted = std::move(check);
}

void Engine::cancel(int64_t request_id) {
    for (const SequencePtr & sequence : impl->sequences) {
        if (sequence->id == request_id) {
            sequence->cancelled = true;
        }
    }
}

size_t Engine::n_active() const {
    return impl->sequences.size();
}

std::vector<Token> Engine::tokenize(std::string_view text, bool add_special) const {
    return common_tokenize(impl->target->vocab(), std::string(text), add_special, /*parse_special=*/true);
}

std::string Engine::detokenize(const std::vector<Token> & tokens) const {
    for (const Token token : tokens) {
        if (token < 0 || token >= impl->target->n_vocab()) {
            throw std::invalid_argument("[detokenize] token id " + std::to_string(token) + " is outside the vocabulary, ids go from 0 to " + std::to_string(impl->target->n_vocab() - 1));
        }
    }
    return common_detokenize(impl->target->vocab(), tokens, /*special=*/true);
}

ChatPrompt Engine::apply_chat_template(const std::string & messages, const std::string & kwargs) const {
    return impl->chat->apply(messages, kwargs);
}

Lattice Engine::draft_lattice(const std::vector<float> & features, Token anchor) {
    if (!impl->drafter || !impl->sequences.empty()) {
        throw std::invalid_argument(impl->drafter ? "[draft_lattice] requests are running: let them end first" : "[draft_lattice] the engine has no drafter");
    }
    const size_t width = impl->target->n_features();
    if (features.size() % width != 0 || features.size() / width >= (size_t) impl->target->n_ctx()) {
        throw std::invalid_argument("[draft_lattice] " + std::to_string(features.size()) + " numbers are given, rows of " + std::to_string(width) + " are needed, fewer than n_ctx");
    }
    if (anchor < 0 || anchor >= impl->target->n_vocab()) {
        throw std::invalid_argument("[draft_lattice] anchor " + std::to_string(anchor) + " is outside the vocabulary");
    }
    impl->reset();
    const auto n_tokens = (int32_t) (features.size() / width);
    for (int32_t pos = 0; pos < n_tokens; ++pos) {
        impl->drafter->stage(0, pos, features.data() + pos * width);
    }
    impl->drafter->inject();
    Lattice lattice = impl->drafter->draft({ { 0, n_tokens, anchor } }).front();
    impl->reset();
    return lattice;
}

Stats Engine::stats() const {
    return impl->total;
}

void Engine::reset_stats() {
    impl->total = impl->new_stats();
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
