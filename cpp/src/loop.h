#pragma once

#include "drafter.h"
#include "sequence.h"
#include "target.h"

#include <deque>
#include <memory>
#include <vector>

namespace dflash2 {

// The speculative loop: prompts go in, cycles of draft, verify and commit run, chunks come out. After every step the
// caches of target and drafter hold exactly the final tokens of each sequence.
class Loop {
public:
    // drafter: null for plain decoding. n_prefill: prompt tokens per decode
    Loop(Target & target, Drafter * drafter, int32_t depth, int32_t n_parallel, int32_t n_prefill);

    // The request must have been checked. Returns its id
    int64_t submit(const std::vector<Token> & prompt, const SamplingOptions & options);
    void    cancel(int64_t id);

    // See Engine::step()
    std::vector<Chunk> step();

    // Drops all requests and empties the caches
    void reset();

    size_t        n_active() const { return sequences_.size(); }
    const Stats & stats() const { return total_; }
    void          reset_stats() { total_ = new_stats(); }

private:
    using SequencePtr = std::unique_ptr<Sequence>;
    using Drafts      = std::vector<std::vector<Token>>;

    void   admit();
    void   reuse_prefix(Sequence & sequence);
    void   run_cycle(std::vector<Chunk> & chunks);
    Drafts draft(const std::vector<Sequence *> & running);
    Chunk  decide(Sequence & sequence, const std::vector<Token> & draft, int32_t row);
    void   evaluate_prompts(std::vector<Chunk> & chunks);
    bool   ends(const Sequence & sequence, Token token) const;
    Chunk  emit(Sequence & sequence, const std::vector<Token> & tokens, int32_t row);
    void   keep(Sequence & sequence, int32_t row, int32_t n_rows);
    void   retire(std::vector<Chunk> & chunks);
    void   warn_of_useless_drafter();
    Stats  new_stats() const;

    Target &  target_;
    Drafter * drafter_;
    int32_t   depth_;
    int32_t   n_parallel_;
    int32_t   n_prefill_;

    int64_t                         next_id_ = 1;
    std::deque<SequencePtr>         sequences_;  // in order of request
    std::vector<std::vector<Token>> slots_;      // [n_parallel] tokens in the caches, kept for the next request
    Stats                           total_;
    bool                            warned_ = false;
};

}  // namespace dflash2
