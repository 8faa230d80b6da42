#pragma once

#include <stdexcept>
#include <string>

namespace dflash2 {

// Messages have the form "[tag] what is wrong: what was found, what was expected, what to do".

// A failure of the engine or of llama.cpp that is not the caller's fault.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A path that names no readable file.
struct FileNotFound : Error {
    using Error::Error;
};

// A file that cannot be used for what it was given: no GGUF, damaged, or of the wrong kind.
struct ModelLoadError : Error {
    using Error::Error;
};

// Two files that are sound on their own but do not belong together.
struct ModelMismatch : Error {
    using Error::Error;
};

// The caller's interrupt check asked to stop; the requests that were running are gone.
struct Interrupted : Error {
    Interrupted() : Error("[engine] interrupted") {}
};

// A bad argument or request is std::invalid_argument.

}  // namespace dflash2
