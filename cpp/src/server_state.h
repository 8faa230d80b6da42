#pragma once

#include "dflash2/engine.h"
#include "drafter.h"

#include <string>
#include <vector>

namespace dflash2 {

// The drafter's part of a slot file, in a file of its own beside llama-server's: path + ".dflash2". `tokens` tell which
// conversation it belongs to, the drafter's file which drafter.

// throws Error; a file is complete or not there
void save_drafter_state(const Drafter &            drafter,
                        const std::string &        drafter_path,
                        llama_seq_id               seq,
                        const std::string &        path,
                        const std::vector<Token> & tokens);

// Whether the file was there and fitted; else the sequence is empty now
bool load_drafter_state(Drafter &                  drafter,
                        const std::string &        drafter_path,
                        llama_seq_id               seq,
                        const std::string &        path,
                        const std::vector<Token> & tokens);

}  // namespace dflash2
