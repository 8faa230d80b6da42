#pragma once

#include <functional>

namespace dflash2 {

// A function that a signal handler may call at any moment: it only wakes a thread, which then calls `work` with the same
// signal. For one `work` in a process; it may take locks and must stay callable until the process ends.
std::function<void(int)> outside_of_signals(std::function<void(int)> work);

// A condition that also holds from the first such signal on: who waits for an answer waits no longer.
std::function<bool()> or_stopping(std::function<bool()> condition);

}  // namespace dflash2
