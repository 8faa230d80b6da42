#pragma once

#include "drafter.h"
#include "sequence.h"
#include "speculator.h"
#include "target.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dflash2 {

// The speculative loop: prompts go in, cycles of draft, verify and commit run, chunks come out. After every step the
// caches of target and drafter hold exactly the final tokens of each sequence.
class Loop {
public:
    // drafter: null for plain decoding. depth: draft tokens per cycle, the most of them when `adaptive`.
    // n_prefill: prompt tokens per decode
    struct Options {
        int32_t     depth      = 0;
        bool        adaptive   = false;
        float       p_min      = 0;
        std::string verify     = "auto";
        int32_t     n_parallel = 1;
        int32_t     n_prefill  = 1;
    };

    Loop(Target & target, Drafter * drafter, Options options);

    // The request must have been checked. Returns its id
    int64_t submit(const std::vector<Token> & prompt, const SamplingOptions & options);
    void    cancel(int64_t id);

    // See Engine::step()
    std::vector<Chunk> step();

    // Drops all requests and empties the caches
    void reset();

    size_t n_active() const { return sequences_.size(); }
    Stats  stats() const;
    void   reset_stats() { total_ = {}; }

private:
    using SequencePtr = std::unique_ptr<Sequence>;
    using Running     = std::vector<Sequence *>;

    void               admit();
    void               reuse_prefix(Sequence & sequence);
    void               run_cycle(std::vector<Chunk> & chunks);
    std::vector<Draft> draft(const Running & running, DepthCycle & cycle);
    static size_t      most_of_neighbours(const Running & running, const std::vector<Draft> & drafts, size_t i);
    Chunk              decide(Sequence & sequence, const Draft & draft, int32_t row);
    void               evaluate_prompts(std::vector<Chunk> & chunks);
    bool               ends(const Sequence & sequence, Token token) const;
    Chunk              emit(Sequence & sequence, const std::vector<Token> & tokens, int32_t row);
    void               keep(Sequence & sequence, int32_t row, int32_t n_rows);
    void               retire(std::vector<Chunk> & chunks);
    void               warn_of_useless_drafter();

    Target &                  target_;
    Drafter *                 drafter_;
    Options                   options_;
    std::optional<Speculator> speculator_;  // none without a drafter

    int64_t                         next_id_ = 1;
    std::deque<SequencePtr>         sequences_;  // in order of request
    std::vector<std::vector<Token>> slots_;      // [n_parallel] tokens in the caches, kept for the next request
    Stats                           total_;
    bool                            warned_ = false;
};

}  // namespace dflash2
