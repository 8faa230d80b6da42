#pragma once

#include "common.h"
#include "json.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct common_sampler;

namespace dflash2 {

// DFlash 2 in llama-server, which calls this where its own speculation has a place. It keeps the target's context, its
// slots and its batches; a slot's sequence id is its number. One thread at a time may be in here.

// Checks the pair that params.speculative.dflash2 asks for, and sets what the target must be opened with. To be called
// before that. throws std::invalid_argument for flags that do not go together, ModelLoadError, ModelMismatch
void prepare_server(common_params & params);

// A slot that generates, in one cycle.
struct ServerRequest {
    int32_t                    slot;
    llama_token                anchor;
    llama_pos                  pos;    // of the anchor
    int32_t                    room;   // most draft tokens that can be of use
    std::vector<llama_token> * draft;  // result, [0 .. room]
};

class ServerSpeculation {
public:
    // params as after prepare_server(). Empties the target's cache. Null: the drafter could not be allocated, as an error
    // in the log says. throws ModelMismatch
    static std::unique_ptr<ServerSpeculation> open(const common_params & params, llama_context * target);
    ~ServerSpeculation();

    // The drafter's context. What the server does to a slot's part of the target's cache it does to this one too, after
    // flush() or forget()
    llama_context * context() const;
    // Brings it up to date with the target
    void flush(int32_t slot);
    // What waits to be brought there is not to come
    void forget(int32_t slot);

    // A prompt starts with n_past tokens that the target's cache holds; the next one stands at `pos`, the first one of the
    // answer at `end`. Without images tokens and positions count alike. Returns how many of the tokens to keep: fewer
    // where the drafter lacks rows in its window, which the target must then evaluate again.
    int32_t reuse(int32_t slot, int32_t n_past, llama_pos pos, llama_pos end, bool has_images);

    // A request starts to generate, with a sampler that is made of `params` and has accepted the prompt. `trace`: keep
    // every cycle. Requests that leave sampling to the backend are left alone: they never run here.
    void begin(int32_t                          slot,
               const common_params_sampling &   params,
               common_sampler *                 sampler,
               const std::vector<llama_token> & prompt,
               bool                             trace);
    void end(int32_t slot);
    // Whether decide() has to be asked for the tokens of this slot
    bool runs(int32_t slot) const;

    // One cycle of all slots that generate (at least one), those that do not run here too: drafts, then the target's pass,
    // then decide() for each, then end_cycle().
    // n_processing: slots that generate or evaluate a prompt. While there are several, a target with a recurrent state gets
    // no drafts: llama.cpp cuts a decode of unequal sequences, and takes a state back within the last part only.
    void draft(const std::vector<ServerRequest> & requests, size_t n_processing);
    // Whether what draft() proposed must not share its decode with prompts
    bool wants_whole_decode() const;
    // After each decode of the target that went well
    void decoded(const common_batch & batch);
    // The tokens that follow the anchor, whose row in the last decode is `row`: the accepted draft tokens, then one of the
    // target's own; the last one may end the text. Also for the row that ends a prompt. throws Error
    std::vector<llama_token> decide(int32_t slot, int32_t row);
    void                     end_cycle();

    // Slot files. `tokens` identify what the target's file holds. A drafter's state that is missing or belongs to something
    // else is announced; the next request then evaluates again what it needs
    void save(int32_t slot, const std::string & path, const std::vector<llama_token> & tokens) const;
    void restore(int32_t slot, const std::string & path, const std::vector<llama_token> & tokens);

    common_json timings(int32_t slot) const;  // of the request, null where none runs
    std::string metrics() const;              // Prometheus text
    common_json props() const;

private:
    struct Impl;
    explicit ServerSpeculation(std::unique_ptr<Impl> impl);

    std::unique_ptr<Impl> impl;
};

}  // namespace dflash2
