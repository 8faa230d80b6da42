#pragma once

#include "dflash2/engine.h"
#include "json.h"

#include <string>
#include <vector>

namespace dflash2 {

// What llama-server says about speculation, under the names of Stats and Cycle

// trace: null for none
common_json timings_json(const Stats & stats, const std::vector<Cycle> * trace);

// Counters of a server since its start, in the text format of Prometheus
std::string metrics_text(const Stats & total);

}  // namespace dflash2
