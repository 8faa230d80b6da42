#pragma once

#include "check.h"
#include "gguf.h"
#include "llama.h"

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace dflash2 {

// A model without weights: tokens of one character each, so that grammars can say everything about them, the token that
// ends answers, and as many fillers as asked for.
class TinyVocabulary {
public:
    static constexpr llama_token n_characters = 15;
    static constexpr llama_token end          = n_characters;
    static constexpr llama_token first_filler = end + 1;

    explicit TinyVocabulary(int32_t n_tokens = first_filler) {
        llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
        const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                           ("dflash2-vocabulary-" + std::to_string(std::random_device()()) + ".gguf");
        CHECK(write(path, n_tokens));
        llama_model_params params = llama_model_default_params();
        params.vocab_only         = true;
        model_.reset(llama_model_load_from_file(path.string().c_str(), params));
        std::filesystem::remove(path);
        CHECK(model_);
        CHECK(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())) == n_tokens);
        CHECK(llama_vocab_is_eog(llama_model_get_vocab(model_.get()), end));
    }

    const llama_model * model() const { return model_.get(); }

    static llama_token id(char character) {
        const size_t index = std::string(characters).find(character);
        CHECK(index != std::string::npos);
        return (llama_token) index;
    }

    static std::vector<llama_token> ids(const std::string & text) {
        std::vector<llama_token> tokens;
        for (const char character : text) {
            tokens.push_back(id(character));
        }
        return tokens;
    }

private:
    static constexpr const char * characters = "abcdefgh012[],\"";

    static bool write(const std::filesystem::path & path, int32_t n_tokens) {
        std::vector<std::string> tokens;
        for (const char * c = characters; *c != 0; ++c) {
            tokens.emplace_back(1, *c);
        }
        tokens.emplace_back("<|end|>");
        while ((int32_t) tokens.size() < n_tokens) {
            tokens.push_back("<|filler" + std::to_string(tokens.size()) + "|>");
        }
        std::vector<int32_t> types(n_tokens, LLAMA_TOKEN_TYPE_USER_DEFINED);
        std::fill_n(types.begin(), n_characters, LLAMA_TOKEN_TYPE_NORMAL);
        types[end] = LLAMA_TOKEN_TYPE_CONTROL;

        const std::unique_ptr<gguf_context, void (*)(gguf_context *)> file(gguf_init_empty(), gguf_free);
        gguf_set_val_str(file.get(), "general.architecture", "qwen3");
        gguf_set_val_str(file.get(), "tokenizer.ggml.model", "gpt2");
        gguf_set_val_str(file.get(), "tokenizer.ggml.pre", "gpt-2");
        set_strings(file.get(), "tokenizer.ggml.tokens", tokens);
        gguf_set_arr_data(file.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
        set_strings(file.get(), "tokenizer.ggml.merges", { "h h" });  // llama.cpp wants one
        gguf_set_val_u32(file.get(), "tokenizer.ggml.eos_token_id", (uint32_t) end);
        gguf_set_val_bool(file.get(), "tokenizer.ggml.add_bos_token", false);
        return gguf_write_to_file(file.get(), path.string().c_str(), true);
    }

    static void set_strings(gguf_context * file, const char * key, const std::vector<std::string> & values) {
        std::vector<const char *> pointers;
        for (const std::string & value : values) {
            pointers.push_back(value.c_str());
        }
        gguf_set_arr_str(file, key, pointers.data(), pointers.size());
    }

    std::unique_ptr<llama_model, void (*)(llama_model *)> model_{ nullptr, llama_model_free };
};

}  // namespace dflash2
