#include "logging.h"

#include "ggml.h"
#include "llama.h"
#include "log.h"

#include <deque>
#include <mutex>

namespace dflash2 {

namespace {

constexpr size_t max_lines = 1000;

std::mutex                                   mutex;
std::deque<std::pair<LogLevel, std::string>> lines;
thread_local FirstError *                    errors = nullptr;
void (*sink)(LogLevel, const std::string &)         = nullptr;

LogLevel to_level(ggml_log_level level) {
    switch (level) {
    case GGML_LOG_LEVEL_ERROR:
        return LogLevel::error;
    case GGML_LOG_LEVEL_WARN:
        return LogLevel::warning;
    case GGML_LOG_LEVEL_INFO:
        return LogLevel::info;
    default:
        return LogLevel::debug;
    }
}

// llama.cpp logs in pieces: a line ends with its newline, GGML_LOG_LEVEL_CONT continues it
void on_log(ggml_log_level level, const char * text, void *) {
    static thread_local std::string    line;
    static thread_local ggml_log_level line_level = GGML_LOG_LEVEL_DEBUG;
    if (level != GGML_LOG_LEVEL_CONT) {
        line_level = level;
    }
    for (const char * c = text; *c != '\0'; ++c) {
        if (*c != '\n') {
            line += *c;
        } else if (!line.empty()) {
            log_line(to_level(line_level), line);
            line.clear();
        }
    }
}

std::string without_function(const std::string & line) {
    const size_t colon = line.find(": ");
    const bool   named = colon != std::string::npos && line.find(' ') > colon;
    return named ? line.substr(colon + 2) : line;
}

}  // namespace

void start_llama() {
    if (sink) {
        return;  // the program has started llama.cpp, and has its log
    }
    static std::once_flag once;
    std::call_once(once, [] {
        llama_backend_init();
        llama_log_set(on_log, nullptr);
        // llama-common prints to stderr from a thread of its own; what it has to say also arrives as an exception
        common_log_set_verbosity_thold(-1);
    });
}

void log_line(LogLevel level, const std::string & line) {
    if (level == LogLevel::error && errors && errors->first_.empty()) {
        errors->first_ = without_function(line);
    }
    if (sink) {
        sink(level, line);
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (lines.size() == max_lines) {
        lines.pop_front();
    }
    lines.emplace_back(level, line);
}

void send_log_to(void (*new_sink)(LogLevel level, const std::string & line)) {
    sink = new_sink;
}

FirstError::FirstError() : outer_(errors) {
    errors = this;
}

FirstError::~FirstError() {
    errors = outer_;
}

std::vector<std::pair<LogLevel, std::string>> drain_log() {
    const std::lock_guard<std::mutex>             lock(mutex);
    std::vector<std::pair<LogLevel, std::string>> result(lines.begin(), lines.end());
    lines.clear();
    return result;
}

}  // namespace dflash2
