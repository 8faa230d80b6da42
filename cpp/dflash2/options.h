#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash2 {

// How an engine is opened.
struct EngineOptions {
    std::string model;             // path of the target GGUF
    std::string draft;             // path of the drafter GGUF; empty: plain decoding
    int32_t     n_ctx        = 0;  // tokens one sequence may hold, prompt and answer; 0: the target's training context
    int32_t     n_batch      = 2048;    // prompt tokens per decode
    int32_t     n_gpu_layers = -1;      // target and drafter layers kept on the GPU; -1: all
    int32_t     n_threads    = 0;       // CPU threads; 0: one per physical core
    int32_t     n_parallel   = 1;       // sequences decoded together
    std::string device       = "auto";  // "auto", "cpu", or device names separated by commas
    std::string flash_attn   = "auto";  // "auto", "on", "off"
    int32_t     depth        = -1;      // drafted tokens per cycle; -1: automatic; more than block size - 1 is clamped
    float       p_min        = 0.0f;    // a draft ends before the first slot whose best probability is lower
    std::string verify       = "auto";  // "auto", "reject", "block", "match"
    std::string cache_type   = "f16";   // type of both K and V caches of the target: f32, f16, bf16, q8_0, q4_0 ...
    // Graph of the drafter: "auto", "fused", "composed", or "upstream": llama.cpp's own, with its attention in both models
    std::string fused_ops = "auto";
    // LM head of the drafter: "target", "q4_0" (a copy of the target's), "auto": a copy where it pays
    std::string draft_head = "auto";
    std::string rpc;  // "host:port,...": RPC servers whose devices are added
};

// How one request is sampled. vLLM's names, and llama.cpp's where vLLM has none; the defaults switch every sampler off,
// so that a request is greedy over the whole vocabulary.
struct SamplingOptions {
    int32_t max_tokens  = 256;   // >= 1
    float   temperature = 0.0f;  // 0: greedy
    int32_t top_k       = 0;     // 0: off
    float   top_p       = 1.0f;
    float   min_p       = 0.0f;
    float   typical_p   = 1.0f;
    float   top_n_sigma = -1.0f;  // negative: off

    float xtc_probability   = 0.0f;
    float xtc_threshold     = 0.1f;
    float dynatemp_range    = 0.0f;
    float dynatemp_exponent = 1.0f;

    float   repetition_penalty = 1.0f;
    float   presence_penalty   = 0.0f;
    float   frequency_penalty  = 0.0f;
    int32_t penalty_last_n     = 64;  // tokens the three penalties look back on, prompt included; -1: all of n_ctx

    float                    dry_multiplier        = 0.0f;
    float                    dry_base              = 1.75f;
    int32_t                  dry_allowed_length    = 2;
    int32_t                  dry_penalty_last_n    = -1;
    std::vector<std::string> dry_sequence_breakers = { "\n", ":", "\"", "*" };

    int32_t mirostat     = 0;  // 0: off, 1, 2
    float   mirostat_tau = 5.0f;
    float   mirostat_eta = 0.1f;

    uint32_t                 seed = 0;
    std::vector<std::string> stop;            // the answer ends before the first of these
    std::vector<int32_t>     stop_token_ids;  // the answer ends with the first of these
    bool                     ignore_eos = false;
    int32_t                  logprobs   = -1;  // alternatives reported per token; -1: none, 0: the chosen token's alone
    std::vector<std::pair<int32_t, float>> logit_bias;     // (token id, added to its logit)
    std::string                            grammar;        // GBNF
    std::string                            json_schema;    // JSON text; excludes `grammar`
    bool                                   trace = false;  // report every cycle
};

}  // namespace dflash2
