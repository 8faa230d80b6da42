#pragma once

#include "chat.h"
#include "dflash2/engine.h"

#include <string>

namespace dflash2 {

// The chat template of a model, read at first use: a file without one, or with a broken one, still completes text.
class ChatTemplate {
public:
    explicit ChatTemplate(const llama_model * model) : model_(model) {}

    // throws std::invalid_argument; see Engine::apply_chat_template
    ChatPrompt apply(const std::string & messages, const std::string & kwargs);

private:
    const llama_model *       model_;
    common_chat_templates_ptr templates_;
};

}  // namespace dflash2
