#include "dflash2/server_signals.h"

#include <atomic>
#include <thread>
#include <utility>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace dflash2 {

namespace {

std::atomic<bool> stopping{ false };

}  // namespace

std::function<bool()> or_stopping(std::function<bool()> condition) {
    return [condition = std::move(condition)] {
        return stopping || condition();
    };
}

#ifdef _WIN32

// Windows calls handlers on a thread of their own
std::function<void(int)> outside_of_signals(std::function<void(int)> work) {
    return [work = std::move(work)](int signal) {
        stopping = true;
        work(signal);
    };
}

#else

namespace {

int ends[2] = { -1, -1 };  // of a pipe: write() is one of the few calls that a handler may make

}  // namespace

std::function<void(int)> outside_of_signals(std::function<void(int)> work) {
    if (pipe(ends) != 0) {
        return work;
    }
    std::thread([work = std::move(work)] {
        for (;;) {
            unsigned char signal = 0;
            if (read(ends[0], &signal, 1) == 1) {
                stopping = true;
                work(signal);
            }
        }
    }).detach();
    return [](int signal) {
        const auto byte = (unsigned char) signal;
        if (write(ends[1], &byte, 1) != 1) {
            _exit(128 + signal);
        }
    };
}

#endif

}  // namespace dflash2
