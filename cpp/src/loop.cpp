#include "loop.h"

#include "clock.h"
#include "dflash2/errors.h"
#include "logging.h"
#include "logprobs.h"
#include "sampling_params.h"

#include <algorithm>

namespace dflash2 {

Loop::Loop(Target & target, Drafter * drafter, Options options) :
    target_(target), drafter_(drafter), options_(std::move(options)), slots_(options_.n_parallel) {
    if (drafter_) {
        speculator_.emplace(
            target_, *drafter_,
            Speculator::Options{ options_.depth, options_.adaptive, options_.p_min, /*equal_rows=*/true });
    }
}

int64_t Loop::submit(const std::vector<Token> & prompt, const SamplingOptions & options) {
    Sampler sampler(sampling_params(options, target_), target_.model());
    for (const Token token : prompt) {
        sampler.accept(token, /*generated=*/false);
    }
    const Rule rule = drafter_ ? choose_rule(options_.verify, sampler) : Rule::match;

    auto sequence =
        std::make_unique<Sequence>(Sequence{ next_id_, options, std::move(sampler), rule, Randoms(options.seed),
                                             TextStream(options.stop), Stats(), prompt, (int32_t) prompt.size() });
    sequence->stats.verify_rule   = drafter_ ? name(rule) : "none";
    sequence->stats.fused_ops     = drafter_ ? drafter_->fused_ops() : "none";
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
    std::vector<bool> taken(options_.n_parallel, false);
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
        for (int32_t slot = 0; slot < options_.n_parallel; ++slot) {
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

    const bool reachable = n_past > 0 && target_.reaches(slot, n_past) &&
                           (!drafter_ || drafter_->reaches(slot, n_past, sequence.n_prompt));
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
    Running running;
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

    const int64_t        start = ggml_time_us();
    DepthCycle           cycle;
    std::vector<Draft>   drafts = draft(running, cycle);
    std::vector<int32_t> rows;
    common_batch         batch(target_.context());
    size_t               deepest = 0;
    for (size_t i = 0; i < running.size(); ++i) {
        const Sequence & sequence = *running[i];
        if (i == 0 || sequence.slot != running[i - 1]->slot + 1) {
            deepest = most_of_neighbours(running, drafts, i);
        }
        rows.push_back(batch.size());
        batch.add(sequence.tokens.back(), sequence.n_past, sequence.slot, true);
        // llama.cpp joins only neighbours with as many rows each into one micro-batch: what a draft lacks is filled up, and
        // taken back like what is rejected
        const size_t n_filled = std::min<size_t>(deepest, target_.n_ctx() - 1 - sequence.n_past);
        for (size_t j = 0; j < std::max(n_filled, drafts[i].tokens.size()); ++j) {
            const bool  drafted = j < drafts[i].tokens.size();
            const Token token   = drafted ? drafts[i].tokens[j] : sequence.tokens.back();
            batch.add(token, sequence.n_past + 1 + (int32_t) j, sequence.slot, drafted);
        }
    }

    const int64_t verify_start = ggml_time_us();
    target_.decode(batch);
    llama_synchronize(target_.context());
    cycle.verify = { batch.size(), seconds_since(verify_start) };

    for (size_t i = 0; i < running.size(); ++i) {
        Sequence & sequence = *running[i];
        Chunk      chunk    = decide(sequence, drafts[i], rows[i]);
        auto       n_judged = (int32_t) drafts[i].tokens.size();
        if (!sequence.finish_reason.empty()) {
            n_judged = chunk.n_accepted;  // what the end of the answer cut off was not rejected
            drafts[i].confidence.resize(n_judged);
        }
        cycle.outcomes.push_back({ &sequence.acceptance, std::move(drafts[i].confidence), n_judged, chunk.n_accepted });
        chunks.push_back(std::move(chunk));
    }
    if (speculator_) {
        speculator_->inject_overfull(cycle);
    }
    const double seconds = seconds_since(start);
    cycle.host_seconds   = seconds - cycle.inject.seconds - cycle.draft.seconds - cycle.verify.seconds;
    if (speculator_) {
        speculator_->record(cycle);
    }

    const auto record = [&](Stats & stats) {
        stats.draft_seconds += cycle.draft.seconds;
        stats.verify_seconds += cycle.verify.seconds;
        stats.sample_seconds += cycle.host_seconds;
        stats.inject_seconds += cycle.inject.seconds;
    };
    record(total_);
    total_.generation_seconds += seconds;
    for (Sequence * sequence : running) {
        record(sequence->stats);
    }
    warn_of_useless_drafter();
}

// Tokens of the longest draft from sequence i on, as long as ids follow each other
size_t Loop::most_of_neighbours(const Running & running, const std::vector<Draft> & drafts, size_t i) {
    size_t most = drafts[i].tokens.size();
    for (++i; i < running.size() && running[i]->slot == running[i - 1]->slot + 1; ++i) {
        most = std::max(most, drafts[i].tokens.size());
    }
    return most;
}

// [running]
std::vector<Draft> Loop::draft(const Running & running, DepthCycle & cycle) {
    if (!speculator_) {
        return std::vector<Draft>(running.size());
    }
    std::vector<Speculator::Request> requests;
    for (Sequence * sequence : running) {
        requests.push_back({ { sequence->slot, sequence->n_past, sequence->tokens.back() },
                             sequence->room(target_.n_ctx()),
                             &sequence->acceptance,
                             &sequence->sampler,
                             sequence->rule,
                             &sequence->randoms,
                             &sequence->proposals,
                             &sequence->tokens,
                             [this, sequence](Token token) { return ends(*sequence, token); } });
    }
    return speculator_->draft(requests, cycle);
}

// Verifies the draft whose anchor is row `row` of the target's decode, and keeps what the target agrees with
Chunk Loop::decide(Sequence & sequence, const Draft & draft, int32_t row) {
    const int32_t position = sequence.n_past;
    const Block   block    = {
        draft, [&](int32_t i) { return target_.logits(row + i); }, [&](Token token) { return ends(sequence, token); },
        [&](size_t i, const Law & p) { sequence.proposals.record(draft.slots[i], p, sequence.sampler.temperature()); }
    };
    const Verdict verdict = verify(sequence.rule, sequence.sampler, block, sequence.randoms);

    Chunk chunk      = emit(sequence, verdict.tokens, row);
    chunk.n_accepted = std::min(verdict.n_accepted, (int32_t) chunk.token_ids.size());
    keep(sequence, row, 1 + chunk.n_accepted);
    if (!target_.trim(sequence.slot, sequence.n_past)) {
        throw Error("[engine] the target's cache cannot take back rejected tokens");
    }

    const auto n_draft = (int32_t) draft.tokens.size();
    sequence.stats.record_cycle(n_draft, chunk.n_accepted);
    total_.record_cycle(n_draft, chunk.n_accepted);
    const bool same    = total_.verify_rule.empty() || total_.verify_rule == sequence.stats.verify_rule;
    total_.verify_rule = same ? sequence.stats.verify_rule : "mixed";
    if (sequence.options.trace) {
        const Token last = chunk.token_ids.empty() ? no_token : chunk.token_ids.back();
        chunk.cycle      = Cycle{ position, n_draft, draft.tokens, chunk.n_accepted, last };
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
    int32_t           room = options_.n_prefill;
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
        drafter_->inject_prompts();
    }
    for (const Part & part : parts) {
        Sequence & sequence = *part.sequence;
        if (!sequence.in_prompt()) {
            const int32_t last      = part.row + part.n_rows - 1;
            const Draft   none      = {};
            const Block   block     = { none, [&](int32_t) { return target_.logits(last); }, {} };
            sequence.first_token_us = ggml_time_us();
            chunks.push_back(
                emit(sequence, verify(sequence.rule, sequence.sampler, block, sequence.randoms).tokens, last));
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
    const bool      in_prompt = sequence.in_prompt();
    const llama_pos needed    = drafter_ && in_prompt ? drafter_->first_needed(sequence.n_prompt) : 0;
    for (int32_t i = 0; i < n_rows; ++i) {
        const llama_pos pos = sequence.n_past + i;
        slots_[sequence.slot].push_back(sequence.tokens[pos]);
        if (!drafter_ || pos < needed) {
            continue;
        }
        if (in_prompt) {
            drafter_->stage_prompt(sequence.slot, pos, target_, row + i);
        } else {
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
    slots_.assign(options_.n_parallel, {});
}

void Loop::warn_of_useless_drafter() {
    const std::string complaint = warned_ ? "" : complaint_of_drafter(total_, /*one_in=*/50);
    if (!complaint.empty()) {
        warned_ = true;
        log_line(LogLevel::warning, complaint);
    }
}

Stats Loop::stats() const {
    Stats stats     = total_;
    stats.fused_ops = drafter_ ? drafter_->fused_ops() : "none";
    if (speculator_) {
        stats.verify_ms = speculator_->costs().verify.ms_by_rows();
        stats.draft_ms  = speculator_->costs().draft.ms_by_rows();
    }
    if (stats.verify_rule.empty()) {
        stats.verify_rule = "none";
    }
    return stats;
}

}  // namespace dflash2
