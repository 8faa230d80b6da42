#include "dflash2/system.h"

#include "bindings.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace dflash2 {

namespace {

int logging_level(LogLevel level) {
    switch (level) {
    case LogLevel::error:
        return 40;
    case LogLevel::warning:
        return 30;
    case LogLevel::info:
        return 20;
    default:
        return 10;
    }
}

std::vector<std::pair<int, py::str>> drain_log_lines() {
    std::vector<std::pair<int, py::str>> result;
    for (const auto & [level, line] : drain_log()) {
        PyObject * text = PyUnicode_DecodeUTF8(line.data(), (Py_ssize_t) line.size(), "replace");
        result.emplace_back(logging_level(level), py::reinterpret_steal<py::str>(text));
    }
    return result;
}

}  // namespace

void register_system(py::module_ & module) {
    py::class_<Device>(module, "Device", "A device that ggml can compute on.")
        .def_readonly("name", &Device::name)
        .def_readonly("description", &Device::description)
        .def_readonly("backend", &Device::backend)
        .def_readonly("memory_free", &Device::memory_free, "Bytes; 0: unknown.")
        .def_readonly("memory_total", &Device::memory_total, "Bytes; 0: unknown.")
        .def_readonly("fused_ops", &Device::fused_ops, "How the DFlash 2 ops run there: fused or composed.");

    module.def("load_backends", &load_backends, py::arg("directory"), "Loads backends that were built as plugins.");
    module.def("devices", &devices);
    module.def("cpu_features", &cpu_features, "Instruction sets that ggml was built for.");
    module.def("drain_log", &drain_log_lines, "Lines logged since the last call, each with its level of `logging`.");
    module.def("llama_cpp_version", &llama_cpp_version, "Of the package that llama.cpp was taken from.");
    module.def("llama_cpp_commit", &llama_cpp_commit, "40 hex digits.");
}

}  // namespace dflash2
