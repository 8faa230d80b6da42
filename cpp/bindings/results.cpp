#include "bindings.h"
#include "dflash2/engine.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace dflash2 {

void register_results(py::module_ & module) {
    py::class_<Stats>(module, "Stats", "Counts and times of one request or of an engine.")
        .def_readonly("prompt_tokens", &Stats::prompt_tokens)
        .def_readonly("cached_tokens", &Stats::cached_tokens)
        .def_readonly("generated_tokens", &Stats::generated_tokens)
        .def_readonly("verify_steps", &Stats::verify_steps)
        .def_readonly("draft_tokens", &Stats::draft_tokens)
        .def_readonly("accepted_tokens", &Stats::accepted_tokens)
        .def_readonly("accepted_per_position", &Stats::accepted_per_position)
        .def_readonly("depth_histogram", &Stats::depth_histogram)
        .def_readonly("verify_rule", &Stats::verify_rule)
        .def_readonly("fused_ops", &Stats::fused_ops)
        .def_readonly("verify_ms", &Stats::verify_ms, "(rows of the decode, ms), ascending; in a total only.")
        .def_readonly("draft_ms", &Stats::draft_ms)
        .def_readonly("prompt_seconds", &Stats::prompt_seconds)
        .def_readonly("draft_seconds", &Stats::draft_seconds)
        .def_readonly("inject_seconds", &Stats::inject_seconds)
        .def_readonly("verify_seconds", &Stats::verify_seconds)
        .def_readonly("sample_seconds", &Stats::sample_seconds)
        .def_readonly("generation_seconds", &Stats::generation_seconds);

    py::class_<Cycle>(module, "Cycle", "One draft-verify cycle of one sequence.")
        .def_readonly("position", &Cycle::position)
        .def_readonly("depth", &Cycle::depth)
        .def_readonly("draft", &Cycle::draft)
        .def_readonly("n_accepted", &Cycle::n_accepted)
        .def_readonly("token", &Cycle::token);

    py::class_<TokenLogprobs>(module, "TokenLogprobs", "Log-probabilities at the position of one token.")
        .def_readonly("token", &TokenLogprobs::token)
        .def_readonly("logprob", &TokenLogprobs::logprob)
        .def_readonly("top", &TokenLogprobs::top);

    py::class_<Chunk>(module, "Chunk", "What one step gave one request.")
        .def_readonly("request_id", &Chunk::request_id)
        .def_readonly("text", &Chunk::text)
        .def_readonly("token_ids", &Chunk::token_ids)
        .def_readonly("n_accepted", &Chunk::n_accepted)
        .def_readonly("logprobs", &Chunk::logprobs)
        .def_readonly("cycle", &Chunk::cycle)
        .def_readonly("finish_reason", &Chunk::finish_reason)
        .def_readonly("stats", &Chunk::stats);

    py::class_<ChatPrompt>(module, "ChatPrompt", "A conversation rendered by the target's chat template.")
        .def_readonly("text", &ChatPrompt::text)
        .def_readonly("stop", &ChatPrompt::stop);
}

}  // namespace dflash2
