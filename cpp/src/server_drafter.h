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

// Bytes that are taken at load. What more there may be: Drafter::max_backlog_bytes of features that wait
struct DrafterMemory {
    size_t weights    = 0;
    size_t vocabulary = 0;
    size_t cache      = 0;
    size_t compute    = 0;
    size_t head       = 0;  // copy of the target's
    size_t features   = 0;  // in the target's buffers
    size_t rows       = 0;  // the same
};

DrafterMemory memory_of(const Drafter & drafter, const Target & target);

}  // namespace dflash2
