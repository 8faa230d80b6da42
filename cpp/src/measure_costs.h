#pragma once

#include "depth.h"
#include "drafter.h"
#include "target.h"

namespace dflash2 {

// Runs target and draft passes of a few widths at load, so that the first requests need not find out what they cost. Up
// to the first that is slow: where one takes long, so does a request, and there is time to learn.
// throws Error, Interrupted
void measure_costs(Target & target, Drafter & drafter, int32_t max_depth, DepthPolicy & policy);

}  // namespace dflash2
