#pragma once

#include "dflash2/options.h"
#include "dflash2/stats.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash2 {

using Token = int32_t;

// One draft-verify cycle of one sequence.
struct Cycle {
    int32_t            position = 0;  // of the anchor
    int32_t            depth    = 0;  // draft tokens verified
    std::vector<Token> draft;         // [depth]
    int32_t            n_accepted = 0;
    Token              token      = 0;  // the last one: the target's own, unless the answer ended before it
};

// The target's log-probability of a chosen token and of the likeliest ones, from the logits before any sampler.
struct TokenLogprobs {
    Token                                token   = 0;
    float                                logprob = 0;
    std::vector<std::pair<Token, float>> top;  // descending; [options.logprobs]
};

// What one step gave one request: the tokens of one verified block, in order.
struct Chunk {
    int64_t                    request_id = 0;
    std::string                text;  // UTF-8, whole characters only; never holds a stop string or a part of one
    std::vector<Token>         token_ids;
    int32_t                    n_accepted = 0;  // of token_ids: drafted
    std::vector<TokenLogprobs> logprobs;        // [token_ids] when asked for
    std::optional<Cycle>       cycle;           // when options.trace, absent for the token of the prompt pass
    std::string                finish_reason;   // "stop", "length", "cancelled"; empty: more will come
    std::optional<Stats>       stats;           // with finish_reason
};

// The candidates of one drafted block and the scores of every step between them.
// ids:    [n_slots][n_cand]
// scores: [n_slots][n_cand predecessor][n_cand candidate]; at slot 0 every predecessor is the anchor
struct Lattice {
    int32_t            n_slots = 0;
    int32_t            n_cand  = 0;
    std::vector<Token> ids;
    std::vector<float> scores;
};

// A conversation rendered by the target's chat template.
struct ChatPrompt {
    std::string              text;
    std::vector<std::string> stop;  // stop strings the template asks for
};

// A loaded target with its drafter, and the sequences being decoded on it. Not thread-safe: callers serialise.
//
// Requests are queued by submit(), and every step() advances all of them by one cycle, up to n_parallel at a time; a
// sequence that ends makes room for the next one.
class Engine {
public:
    // throws FileNotFound, ModelLoadError, ModelMismatch, std::invalid_argument
    explicit Engine(const EngineOptions & options);
    ~Engine();

    Engine(const Engine &)             = delete;
    Engine & operator=(const Engine &) = delete;

    // Queues a request and returns its id. throws std::invalid_argument for an empty prompt, one that leaves no room
    // for a token in n_ctx, ids outside the vocabulary, or sampling values out of range.
    int64_t submit(const std::vector<Token> & prompt, const SamplingOptions & sampling);

    // Runs one cycle for all sequences that generate, then evaluates one batch of waiting prompt tokens. Returns what
    // that gave, perhaps nothing while n_active() > 0. After a throw all requests are gone and the engine is
    // usable.
    std::vector<Chunk> step();

    // `check` is asked between graph nodes on the CPU, by the thread that called step(); true makes step() throw
    // Interrupted.
    void set_interrupt_check(std::function<bool()> check);

    // Ends a request; its last chunk comes with the next step(). Unknown ids are ignored.
    void cancel(int64_t request_id);

    // Requests queued or running.
    size_t n_active() const;

    // Special tokens written in the text are parsed; bytes that are no UTF-8 count as U+FFFD
    std::vector<Token> tokenize(std::string_view text, bool add_special) const;
    // Bytes as the tokens give them: may end inside a UTF-8 character. throws std::invalid_argument for unknown ids
    std::string detokenize(const std::vector<Token> & tokens) const;

    // `messages`: JSON array in OpenAI's form; `kwargs`: JSON object of template variables, values of any JSON type.
    // throws std::invalid_argument for messages or variables that the template rejects.
    ChatPrompt apply_chat_template(const std::string & messages, const std::string & kwargs) const;

    // Drafts one block after the given target features, outside of any request.
    // features: [n_tokens][n_taps * n_embd], row i at position i; the anchor stands at position n_tokens.
    // throws std::invalid_argument without a drafter, while requests run, or for a shape that does not fit
    Lattice draft_lattice(const std::vector<float> & features, Token anchor);

    // Totals since opening or reset_stats().
    Stats stats() const;
    void  reset_stats();

    int32_t                  n_ctx() const;  // tokens one sequence may hold
    int32_t                  n_parallel() const;
    int32_t                  n_vocab() const;
    int32_t                  block_size() const;  // of the drafter, anchor included; 0 without one
    int32_t                  depth() const;       // most draft tokens per cycle; 0 without a drafter
    int32_t                  mask_token() const;  // of the drafter; -1 without one
    std::vector<int32_t>     tap_layers() const;  // 0-based target layers whose output the drafter reads
    std::vector<std::string> devices() const;     // names of the devices that hold the target

private:
    struct Impl;
    std::unique_ptr<Impl> impl;
};

}  // namespace dflash2
