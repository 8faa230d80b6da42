#pragma once

#include "dflash2/system.h"

#include <string>

namespace dflash2 {

// Starts llama.cpp and sends what it logs to the buffer that drain_log() empties. Once per process; later calls do
// nothing.
void start_llama();

void log_line(LogLevel level, const std::string & line);

// Keeps the first error that llama.cpp logs on this thread while it lives: its C functions report a cause only there.
class FirstError {
public:
    FirstError();
    ~FirstError();

    FirstError(const FirstError &)             = delete;
    FirstError & operator=(const FirstError &) = delete;

    // Without the name of the function that logged it; empty if there was none.
    const std::string & cause() const { return first_; }

private:
    friend void log_line(LogLevel level, const std::string & line);

    std::string  first_;
    FirstError * outer_;
};

}  // namespace dflash2
