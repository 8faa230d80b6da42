#include "loop.h"

#include "dflash2/errors.h"
#include "lattice.h"
#include "logging.h"
#include "verify.h"

#include <algorithm>

namespace dflash2 {

namespace {

double seconds_since(int64_t start_us) {
    return 1e-6 * (double) (ggml_time_us() - start_us);
}

}  // namespace

Loop::Loop(Target & target, Drafter * drafter, int32_t depth, int32_t n_parallel, int32_t n_prefill) :
    target_(target), drafter_(drafter), depth_(depth), n_parallel_(n_parallel), n_prefill_(n_prefill),
    slots_(n_parallel), total_(new_stats()) {}

int64_t Loop::submit(const std::vector<Token> & prompt, const SamplingOptions & options) {
    auto sequence =
        std::make_unique<Sequence>(Sequence{ next_id_, options, Sampler(options, target_, prompt),
                                             TextStream(options.stop), new_stats(), prompt, (int32_t) prompt.size() });
    sequence->stats.prompt_tokens = (int64_t) prompt.size();
    total_.prompt_tokens += (int64_t) prompt.size();
    sequences_.push_back(std::move(sequence));
    return next_id_++;
}

void Loop::cancel(int64_t id) {
    for (const SequencePtr & sequence : sequences_) {
        if (sequence->id == id) {
            sequence->cancelled = true;
        }
    }
}

std::vector<Chunk> Loop::step() {
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
void Loop::admit() {
    std::vector<bool> taken(n_parallel_, false);
    for (const SequencePtr & sequence : sequences_) {
        if (sequence->slot >= 0) {
            taken[sequence->slot] = true;
        }
    }
    for (const SequencePtr & sequence : sequences_) {
        if (sequence->slot >= 0) {
            continue;
        }
        int32_t best      = -1;
        size_t  best_size = 0;
        for (int32_t slot = 0; slot < n_parallel_; ++slot) {
            const auto & held = slots_[slot];
            const size_t size =
                std::mismatch(held.begin(), held.end(), sequence->tokens.begin(), sequence->tokens.end()).first -
                held.begin();
            // without a prefix in common: rather an empty slot than one that holds a conversation
            if (!taken[slot] &&
                (best < 0 || size > best_size || (size == best_size && held.size() < slots_[best].size()))) {
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
void Loop::reuse_prefix(Sequence & sequence) {
    const llama_seq_id slot   = sequence.slot;
    const int32_t      n_past = sequence.n_past;

    const bool reachable =
        n_past > 0 && target_.reaches(slot, n_past) && (!drafter_ || drafter_->reaches(slot, n_past));
    if (!reachable || !target_.trim(slot, n_past) || (drafter_ && !drafter_->trim(slot, n_past))) {
        target_.trim(slot, 0);
        if (drafter_) {
            drafter_->trim(slot, 0);
        }
        sequence.n_past = 0;
    }
    // a windowed drafter needs only the end of a long prompt: what it holds would leave a hole before that
    if (drafter_ && drafter_->first_needed(sequence.n_prompt) > sequence.n_past) {
        drafter_->trim(slot, 0);
    }
    slots_[slot].assign(sequence.tokens.begin(), sequence.tokens.begin() + sequence.n_past);
    sequence.stats.cached_tokens = sequence.n_past;
    total_.cached_tokens += sequence.n_past;
}

// Draft, verify, commit: one cycle of all sequences that generate
void Loop::run_cycle(std::vector<Chunk> & chunks) {
    std::vector<Sequence *> running;
    for (const SequencePtr & sequence : sequences_) {
        if (sequence->slot >= 0 && !sequence->in_prompt() && sequence->finish_reason.empty()) {
            running.push_back(sequence.get());
        }
    }
    if (running.empty()) {
        return;
    }
    // llama.cpp joins only sequences whose ids follow each other into one micro-batch
    std::sort(running.begin(), running.end(), [](const Sequence * a, const Sequence * b) { return a->slot < b->slot; });

    const int64_t start  = ggml_time_us();
    const Drafts  drafts = draft(running);

    const int64_t        verify_start = ggml_time_us();
    common_batch         batch(target_.context());
    std::vector<int32_t> rows;
    for (size_t i = 0; i < running.size(); ++i) {
        const Sequence & sequence = *running[i];
        rows.push_back(batch.size());
        batch.add(sequence.tokens.back(), sequence.n_past, sequence.slot, true);
        for (size_t j = 0; j < drafts[i].size(); ++j) {
            batch.add(drafts[i][j], sequence.n_past + 1 + (int32_t) j, sequence.slot, true);
        }
    }
    target_.decode(batch);
    llama_synchronize(target_.context());
    const double verify_seconds = seconds_since(verify_start);

    const int64_t sample_start = ggml_time_us();
    for (size_t i = 0; i < running.size(); ++i) {
        chunks.push_back(decide(*running[i], drafts[i], rows[i]));
    }
    const double sample_seconds = seconds_since(sample_start);

    const int64_t inject_start = ggml_time_us();
    if (drafter_) {
        drafter_->inject();
    }
    const double inject_seconds = seconds_since(inject_start);

    const auto record = [&](Stats & stats) {
        stats.draft_seconds += 1e-6 * (double) (verify_start - start);
        stats.verify_seconds += verify_seconds;
        stats.sample_seconds += sample_seconds;
        stats.inject_seconds += inject_seconds;
    };
    record(total_);
    total_.generation_seconds += seconds_since(start);
    for (Sequence * sequence : running) {
        record(sequence->stats);
    }
    warn_of_useless_drafter();
}

// Draft tokens of each sequence, none where there is no room for any
Loop::Drafts Loop::draft(const std::vector<Sequence *> & running) {
    Drafts                      drafts(running.size());
    std::vector<Drafter::Block> blocks;
    std::vector<size_t>         owners;
    for (size_t i = 0; drafter_ && i < running.size(); ++i) {
        const Sequence & sequence = *running[i];
        if (sequence.room(target_.n_ctx()) > 0 && drafter_->fits(sequence.n_past)) {
            blocks.push_back({ sequence.slot, sequence.n_past, sequence.tokens.back() });
            owners.push_back(i);
        }
    }
    if (blocks.empty()) {
        return drafts;
    }
    const std::vector<Lattice> lattices = drafter_->draft(blocks);
    for (size_t i = 0; i < blocks.size(); ++i) {
        drafts[owners[i]] = greedy_walk(lattices[i], std::min(depth_, running[owners[i]]->room(target_.n_ctx())));
    }
    return drafts;
}

// Verifies the draft whose anchor is row `row` of the target's decode, and keeps what the target agrees with
Chunk Loop::decide(Sequence & sequence, const std::vector<Token> & draft, int32_t row) {
    const int32_t position = sequence.n_past;

    const Verdict verdict =
        verify_match(sequence.sampler, target_, row, draft, [&](Token token) { return ends(sequence, token); });

    Chunk chunk      = emit(sequence, verdict.tokens, row);
    chunk.n_accepted = std::min(verdict.n_accepted, (int32_t) chunk.token_ids.size());
    keep(sequence, row, 1 + chunk.n_accepted);
    if (!target_.trim(sequence.slot, sequence.n_past)) {
        throw Error("[engine] the target's cache cannot take back rejected tokens");
    }

    const auto n_draft = (int32_t) draft.size();
    sequence.stats.record_cycle(n_draft, chunk.n_accepted);
    total_.record_cycle(n_draft, chunk.n_accepted);
    if (sequence.options.trace) {
        const Token last = chunk.token_ids.empty() ? no_token : chunk.token_ids.back();
        chunk.cycle      = Cycle{ position, n_draft, draft, chunk.n_accepted, last };
    }
    return chunk;
}

// One decode of at most n_prefill prompt tokens; the last one of a prompt gives the first token of the answer
void Loop::evaluate_prompts(std::vector<Chunk> & chunks) {
    struct Part {
        Sequence * sequence;
        int32_t    row;
        int32_t    n_rows;
    };

    std::vector<Part> parts;
    int32_t           room = n_prefill_;
    for (const SequencePtr & sequence : sequences_) {
        const int32_t n_rows = std::min(room, sequence->n_prompt - sequence->n_past);
        if (sequence->slot >= 0 && n_rows > 0) {
            parts.push_back({ sequence.get(), 0, n_rows });
            room -= n_rows;
        }
    }
    if (parts.empty()) {
        return;
    }
    std::sort(parts.begin(), parts.end(),
              [](const Part & a, const Part & b) { return a.sequence->slot < b.sequence->slot; });
    common_batch batch(target_.context());
    for (Part & part : parts) {
        part.row = batch.size();
        for (int32_t i = 0; i < part.n_rows; ++i) {
            const int32_t pos = part.sequence->n_past + i;
            batch.add(part.sequence->tokens[pos], pos, part.sequence->slot, pos == part.sequence->n_prompt - 1);
        }
    }

    const int64_t start = ggml_time_us();
    target_.decode(batch);
    for (const Part & part : parts) {
        keep(*part.sequence, part.row, part.n_rows);
    }
    if (drafter_) {
        drafter_->inject();
    }
    for (const Part & part : parts) {
        Sequence & sequence = *part.sequence;
        if (!sequence.in_prompt()) {
            const int32_t last  = part.row + part.n_rows - 1;
            const Token   token = sequence.sampler.sample(target_, last);
            if (token != no_token) {
                sequence.sampler.accept(token);
            }
            sequence.first_token_us = ggml_time_us();
            chunks.push_back(emit(sequence, { token }, last));
        }
    }
    const double seconds = seconds_since(start);
    total_.prompt_seconds += seconds;
    for (const Part & part : parts) {
        part.sequence->stats.prompt_seconds += seconds;
    }
}

// Whether an answer is complete with this token
bool Loop::ends(const Sequence & sequence, Token token) const {
    return sequence.is_stop_token(token) ||
           (!sequence.options.ignore_eos && llama_vocab_is_eog(target_.vocab(), token));
}

// Appends tokens to the answer until one of them ends it. row: the one that gave the first of them
Chunk Loop::emit(Sequence & sequence, const std::vector<Token> & tokens, int32_t row) {
    Chunk chunk;
    chunk.request_id = sequence.id;
    for (const Token token : tokens) {
        if (token == no_token) {
            sequence.finish_reason = "stop";
            chunk.text += sequence.text.finish();
            break;
        }
        sequence.tokens.push_back(token);
        chunk.token_ids.push_back(token);
        if (sequence.options.logprobs >= 0) {
            const int32_t source = row + (int32_t) chunk.token_ids.size() - 1;
            chunk.logprobs.push_back(row_logprobs(target_, source, token, sequence.options.logprobs));
        }

        const bool last = ends(sequence, token);
        if (!last) {
            chunk.text += sequence.text.push(common_token_to_piece(target_.vocab(), token, /*special=*/false));
        }
        if (last || sequence.text.stopped()) {
            sequence.finish_reason = "stop";
        } else if (sequence.n_generated() >= sequence.options.max_tokens ||
                   (int32_t) sequence.tokens.size() > target_.n_ctx()) {
            sequence.finish_reason = "length";
        }
        if (!sequence.finish_reason.empty()) {
            chunk.text += sequence.text.finish();
            break;
        }
    }
    sequence.stats.generated_tokens += (int64_t) chunk.token_ids.size();
    total_.generated_tokens += (int64_t) chunk.token_ids.size();
    return chunk;
}

// Makes n_rows evaluated rows of a sequence final: their features go to the drafter, their tokens count as cached
void Loop::keep(Sequence & sequence, int32_t row, int32_t n_rows) {
    const llama_pos needed = drafter_ && sequence.in_prompt() ? drafter_->first_needed(sequence.n_prompt) : 0;
    for (int32_t i = 0; i < n_rows; ++i) {
        const llama_pos pos = sequence.n_past + i;
        slots_[sequence.slot].push_back(sequence.tokens[pos]);
        if (drafter_ && pos >= needed) {
            drafter_->stage(sequence.slot, pos, target_, row + i);
        }
    }
    sequence.n_past += n_rows;
}

// Takes the requests that have ended out of the queue and completes their last chunk, or makes one
void Loop::retire(std::vector<Chunk> & chunks) {
    for (auto it = sequences_.begin(); it != sequences_.end();) {
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
        const auto last     = std::find_if(chunks.rbegin(), chunks.rend(),
                                           [&](const Chunk & chunk) { return chunk.request_id == sequence.id; });
        last->finish_reason = sequence.finish_reason;
        last->stats         = sequence.stats;
        it                  = sequences_.erase(it);
    }
}

// After a failure nothing is known of the caches
void Loop::reset() {
    sequences_.clear();
    target_.clear();
    if (drafter_) {
        drafter_->clear();
    }
    slots_.assign(n_parallel_, {});
}

// Wrong features, a damaged drafter or scores that are no numbers show only here: the text stays right
void Loop::warn_of_useless_drafter() {
    constexpr int64_t enough  = 500;  // slots to judge by
    const int64_t     n_slots = total_.verify_steps * depth_;
    if (!warned_ && drafter_ && n_slots >= enough && total_.accepted_tokens < n_slots / 50) {
        warned_ = true;
        log_line(LogLevel::warning, "only " + std::to_string(total_.accepted_tokens) +
                                        " drafted tokens were accepted in " + std::to_string(total_.verify_steps) +
                                        " target passes of depth " + std::to_string(depth_) +
                                        ": the drafter does not fit this target or these prompts");
    }
}

Stats Loop::new_stats() const {
    Stats stats;
    stats.verify_rule = drafter_ ? "match" : "none";
    stats.fused_ops   = drafter_ ? "composed" : "none";
    return stats;
}

}  // namespace dflash2
