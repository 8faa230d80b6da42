#pragma once

#include "common.h"
#include "dflash2/options.h"
#include "target.h"

namespace dflash2 {

// Checks every value against its range, whether or not it is in effect. throws std::invalid_argument
void check_sampling(const SamplingOptions & options, const Target & target);

// The same request in llama.cpp's words. throws std::invalid_argument for a JSON schema that is no grammar
common_params_sampling sampling_params(const SamplingOptions & options, const Target & target);

}  // namespace dflash2
