#pragma once

#include "common.h"
#include "drafter.h"
#include "pair.h"
#include "target.h"

#include <memory>

namespace dflash2 {

// Opens the drafter of llama-server as -ngld, -devd, -td, -ctkd and --dflash2-ctx say. throws ModelLoadError
std::unique_ptr<Drafter>
open_server_drafter(const common_params & params, const Target & target, const DrafterInfo & info);

// Bytes in use
struct DrafterMemory {
    size_t weights = 0;
    size_t cache   = 0;
    size_t compute = 0;
    size_t head    = 0;  // copy of the target's
};

DrafterMemory memory_of(const Drafter & drafter);

}  // namespace dflash2
