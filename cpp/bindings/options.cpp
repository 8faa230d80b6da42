#include "dflash2/options.h"

#include "bindings.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace dflash2 {

void register_options(py::module_ & module) {
    py::class_<EngineOptions>(module, "EngineOptions",
                              "How an engine is opened; the fields are the arguments of Dflash2Engine.")
        .def(py::init<>())
        .def_readwrite("model", &EngineOptions::model)
        .def_readwrite("draft", &EngineOptions::draft, "Empty: plain decoding.")
        .def_readwrite("n_ctx", &EngineOptions::n_ctx)
        .def_readwrite("n_batch", &EngineOptions::n_batch)
        .def_readwrite("n_gpu_layers", &EngineOptions::n_gpu_layers)
        .def_readwrite("n_threads", &EngineOptions::n_threads, "0: one per physical core.")
        .def_readwrite("n_parallel", &EngineOptions::n_parallel)
        .def_readwrite("device", &EngineOptions::device)
        .def_readwrite("flash_attn", &EngineOptions::flash_attn)
        .def_readwrite("depth", &EngineOptions::depth, "-1: automatic.")
        .def_readwrite("p_min", &EngineOptions::p_min, "0: off.")
        .def_readwrite("fused_ops", &EngineOptions::fused_ops)
        .def_readwrite("draft_head", &EngineOptions::draft_head)
        .def_readwrite("verify", &EngineOptions::verify)
        .def_readwrite("cache_type", &EngineOptions::cache_type)
        .def_readwrite("rpc", &EngineOptions::rpc, "host:port, separated by commas.");

    py::class_<SamplingOptions>(module, "SamplingOptions",
                                "How one request is sampled; the fields are those of SamplingParams.")
        .def(py::init<>())
        .def_readwrite("max_tokens", &SamplingOptions::max_tokens)
        .def_readwrite("temperature", &SamplingOptions::temperature)
        .def_readwrite("top_k", &SamplingOptions::top_k)
        .def_readwrite("top_p", &SamplingOptions::top_p)
        .def_readwrite("min_p", &SamplingOptions::min_p)
        .def_readwrite("typical_p", &SamplingOptions::typical_p)
        .def_readwrite("top_n_sigma", &SamplingOptions::top_n_sigma)
        .def_readwrite("xtc_probability", &SamplingOptions::xtc_probability)
        .def_readwrite("xtc_threshold", &SamplingOptions::xtc_threshold)
        .def_readwrite("dynatemp_range", &SamplingOptions::dynatemp_range)
        .def_readwrite("dynatemp_exponent", &SamplingOptions::dynatemp_exponent)
        .def_readwrite("repetition_penalty", &SamplingOptions::repetition_penalty)
        .def_readwrite("presence_penalty", &SamplingOptions::presence_penalty)
        .def_readwrite("frequency_penalty", &SamplingOptions::frequency_penalty)
        .def_readwrite("penalty_last_n", &SamplingOptions::penalty_last_n)
        .def_readwrite("dry_multiplier", &SamplingOptions::dry_multiplier)
        .def_readwrite("dry_base", &SamplingOptions::dry_base)
        .def_readwrite("dry_allowed_length", &SamplingOptions::dry_allowed_length)
        .def_readwrite("dry_penalty_last_n", &SamplingOptions::dry_penalty_last_n)
        .def_readwrite("dry_sequence_breakers", &SamplingOptions::dry_sequence_breakers)
        .def_readwrite("mirostat", &SamplingOptions::mirostat)
        .def_readwrite("mirostat_tau", &SamplingOptions::mirostat_tau)
        .def_readwrite("mirostat_eta", &SamplingOptions::mirostat_eta)
        .def_readwrite("seed", &SamplingOptions::seed)
        .def_readwrite("stop", &SamplingOptions::stop)
        .def_readwrite("stop_token_ids", &SamplingOptions::stop_token_ids)
        .def_readwrite("ignore_eos", &SamplingOptions::ignore_eos)
        .def_readwrite("logprobs", &SamplingOptions::logprobs, "-1: none.")
        .def_readwrite("logit_bias", &SamplingOptions::logit_bias)
        .def_readwrite("grammar", &SamplingOptions::grammar)
        .def_readwrite("json_schema", &SamplingOptions::json_schema)
        .def_readwrite("trace", &SamplingOptions::trace);
}

}  // namespace dflash2
