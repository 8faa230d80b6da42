#pragma once

#include <cstddef>

namespace dflash2 {

// Bytes that this process has from malloc; 0 where that is not told
size_t heap_bytes();

}  // namespace dflash2
