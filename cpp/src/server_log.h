#pragma once

#include "logging.h"

namespace dflash2 {

// Sends what log_line() is given to the log of llama.cpp's programs
void use_server_log();

}  // namespace dflash2
