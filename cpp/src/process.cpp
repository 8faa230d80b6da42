#include "process.h"

#include "dflash2/errors.h"
#include "logging.h"

#include <string>

namespace dflash2 {

void process(llama_context * context, common_batch & batch, const char * what) {
    const FirstError errors;
    const int32_t    rc = llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get());
    if (rc == 2) {
        throw Interrupted();
    }
    if (rc != 0) {
        throw Error(std::string("[engine] the ") + what + " could not evaluate " + std::to_string(batch.size()) +
                    " rows (llama.cpp returned " + std::to_string(rc) + ")" + errors.because());
    }
}

}  // namespace dflash2
