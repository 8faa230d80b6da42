#include "server_log.h"

#include "log.h"

namespace dflash2 {

namespace {

void to_common_log(LogLevel level, const std::string & line) {
    switch (level) {
    case LogLevel::error:
        LOG_ERR("dflash2: %s\n", line.c_str());
        break;
    case LogLevel::warning:
        LOG_WRN("dflash2: %s\n", line.c_str());
        break;
    case LogLevel::info:
        LOG_INF("dflash2: %s\n", line.c_str());
        break;
    case LogLevel::debug:
        LOG_DBG("dflash2: %s\n", line.c_str());
        break;
    }
}

}  // namespace

void use_server_log() {
    send_log_to(to_common_log);
}

}  // namespace dflash2
