#include "dflash2/engine.h"

#include "bindings.h"

#include <chrono>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace dflash2 {

namespace {

// Runs Python's signal handlers during a long decode, so that Ctrl-C need not wait for its end
bool signal_pending() {
    using clock             = std::chrono::steady_clock;
    constexpr auto interval = std::chrono::milliseconds(50);  // the check needs the GIL

    static thread_local clock::time_point last;
    const auto                            now = clock::now();
    if (now - last < interval) {
        return false;
    }
    last = now;
    const py::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

std::unique_ptr<Engine> open_engine(const EngineOptions & options) {
    const py::gil_scoped_release release;
    auto                         engine = std::make_unique<Engine>(options);
    engine->set_interrupt_check(signal_pending);
    return engine;
}

using Features = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::pair<py::array_t<Token>, py::array_t<float>>
draft_lattice(Engine & engine, const Features & features, Token anchor) {
    const std::vector<float> rows(features.data(), features.data() + features.size());
    Lattice                  lattice;
    {
        const py::gil_scoped_release release;
        lattice = engine.draft_lattice(rows, anchor);
    }
    const py::ssize_t slots = lattice.n_slots;
    const py::ssize_t k     = lattice.n_cand;
    return { py::array_t<Token>({ slots, k }, lattice.ids.data()),
             py::array_t<float>({ slots, k, k }, lattice.scores.data()) };
}

}  // namespace

void register_engine(py::module_ & module) {
    using release = py::call_guard<py::gil_scoped_release>;

    py::class_<Engine>(module, "Engine", "A loaded target with its drafter. Not thread-safe: callers serialise.")
        .def(py::init(&open_engine), py::arg("options"))
        .def("submit", &Engine::submit, py::arg("prompt"), py::arg("sampling"), release(),
             "Queues a request and returns its id.")
        .def("step", &Engine::step, release(), "Advances all requests by one cycle.")
        .def("cancel", &Engine::cancel, py::arg("request_id"),
             "Ends a request; its last chunk comes with the next step.")
        .def(
            "tokenize",
            [](const Engine & engine, const std::string & text, bool add_special) {
                return engine.tokenize(text, add_special);
            },
            py::arg("text"), py::arg("add_special"), release())
        .def(
            "detokenize",
            [](const Engine & engine, const std::vector<Token> & tokens) {
                return py::bytes(engine.detokenize(tokens));
            },
            py::arg("tokens"))
        .def("apply_chat_template", &Engine::apply_chat_template, py::arg("messages"), py::arg("kwargs"), release(),
             "Both arguments are JSON: an array of messages, an object of template variables.")
        .def("draft_lattice", &draft_lattice, py::arg("features"), py::arg("anchor"),
             "Drafts one block after the given target features, outside of any request.\n\n"
             "Args:\n"
             "    features: [n_tokens, n_taps * n_embd], row i at position i.\n"
             "    anchor: The token at position n_tokens.\n\n"
             "Returns:\n"
             "    Candidate ids [slots, K] and scores [slots, K predecessors, K candidates].")
        .def("stats", &Engine::stats, "Totals since opening or reset_stats().")
        .def("reset_stats", &Engine::reset_stats)
        .def_property_readonly("n_active", &Engine::n_active, "Requests queued or running.")
        .def_property_readonly("n_ctx", &Engine::n_ctx, "Tokens one sequence may hold.")
        .def_property_readonly("n_parallel", &Engine::n_parallel)
        .def_property_readonly("n_vocab", &Engine::n_vocab)
        .def_property_readonly("block_size", &Engine::block_size, "Of the drafter, anchor included; 0 without one.")
        .def_property_readonly("depth", &Engine::depth, "Most draft tokens per cycle; 0 without a drafter.")
        .def_property_readonly("mask_token", &Engine::mask_token, "Of the drafter; -1 without one.")
        .def_property_readonly("tap_layers", &Engine::tap_layers,
                               "0-based target layers whose output the drafter reads.")
        .def_property_readonly("devices", &Engine::devices, "Names of the devices that hold the target.");
}

}  // namespace dflash2
