#include "chat_prompt.h"

#include "json.h"

#include <stdexcept>

namespace dflash2 {

ChatPrompt ChatTemplate::apply(const std::string & messages, const std::string & kwargs) {
    try {
        if (!templates_) {
            templates_ = common_chat_templates_init(model_, "");
        }
        common_chat_templates_inputs inputs;
        inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(messages));
        for (const auto & item : common_json::parse(kwargs).items()) {
            inputs.chat_template_kwargs[item.key()] = item.value().dump();
        }
        // llama.cpp keeps this one apart from the variables of the template
        const auto thinking = inputs.chat_template_kwargs.find("enable_thinking");
        if (thinking != inputs.chat_template_kwargs.end()) {
            inputs.enable_thinking = thinking->second == "true";
        }
        const common_chat_params params = common_chat_templates_apply(templates_.get(), inputs);
        return { params.prompt, params.additional_stops };
    } catch (const std::exception & error) {
        throw std::invalid_argument(std::string("[chat] the target's chat template cannot render these messages: ") +
                                    error.what());
    }
}

}  // namespace dflash2
