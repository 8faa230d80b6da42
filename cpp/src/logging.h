#pragma once

#include "dflash2/system.h"

#include <string>

namespace dflash2 {

// Starts llama.cpp and sends what it logs to the buffer that drain_log() empties. Once per process; later calls do
// nothing, nor does one after send_log_to().
void start_llama();

void log_line(LogLevel level, const std::string & line);

// From now on log_line() gives its lines to `sink`, not to the buffer: for programs with a log of their own.
void send_log_to(void (*sink)(LogLevel level, const std::string & line));

// Keeps the first error that llama.cpp logs on this thread while it lives: its C functions report a cause only there.
class FirstError {
public:
    FirstError();
    ~FirstError();

    FirstError(const FirstError &)             = delete;
    FirstError & operator=(const FirstError &) = delete;

    // Without the name of the function that logged it; empty if there was none.
    const std::string & cause() const { return first_; }
    // ": " and the cause, or nothing
    std::string because() const { return first_.empty() ? "" : ": " + first_; }

private:
    friend void log_line(LogLevel level, const std::string & line);

    std::string  first_;
    FirstError * outer_;
};

}  // namespace dflash2
