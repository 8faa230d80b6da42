#include "dflash2/errors.h"

#include "bindings.h"

namespace py = pybind11;

namespace dflash2 {

// std::invalid_argument becomes ValueError, std::bad_alloc MemoryError, by pybind11 itself
void register_errors(py::module_ & module) {
    auto base  = py::register_exception<Error>(module, "Dflash2Error", PyExc_RuntimeError);
    base.doc() = "The engine or llama.cpp failed.";
    py::register_exception<ModelLoadError>(module, "ModelLoadError", base).doc() =
        "A file cannot be used for what it was given: no GGUF, damaged, or of the wrong kind.";
    py::register_exception<ModelMismatch>(module, "ModelMismatchError", base).doc() =
        "Target and drafter do not belong together.";

    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) {
                std::rethrow_exception(pointer);
            }
        } catch (const FileNotFound & error) {
            PyErr_SetString(PyExc_FileNotFoundError, error.what());
        } catch (const Interrupted &) {
            // the check that asked for it has set the exception of the signal handler
        }
    });
}

}  // namespace dflash2
