#pragma once

#include "dflash2/system.h"

#include <string>

namespace dflash2 {

// Starts llama.cpp and sends what it logs to the buffer that drain_log() empties. Once per process; later calls do
// nothing.
void start_llama();

void log_line(LogLevel level, const std::string & line);

// Collects the errors that llama.cpp logs while it lives: its C functions report a cause only there.
class LogErrors {
public:
    LogErrors();
    ~LogErrors();

    LogErrors(const LogErrors &)             = delete;
    LogErrors & operator=(const LogErrors &) = delete;

    // The first cause logged on this thread, without the name of the function that logged it; empty if there was none.
    const std::string & cause() const { return first_; }

private:
    friend void log_line(LogLevel level, const std::string & line);

    std::string first_;
    LogErrors * outer_;
};

}  // namespace dflash2
