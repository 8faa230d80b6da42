#pragma once

#include "common.h"
#include "llama.h"

namespace dflash2 {

// Runs one batch on a context and turns llama.cpp's return codes into exceptions. what: names the context in them.
// throws Error, Interrupted
void process(llama_context * context, common_batch & batch, const char * what);

}  // namespace dflash2
