#pragma once

#include "ggml-cpp.h"
#include "gguf.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash2 {

// The metadata and the tensor table of a GGUF, read before llama.cpp sees the file, so that what is wrong can be said
// in words. Tensor data is read only where read_integers() asks for it.
class GgufFile {
public:
    // throws FileNotFound, ModelLoadError
    explicit GgufFile(const std::string & path);

    const std::string & path() const { return path_; }
    const std::string & architecture() const { return architecture_; }

    bool has_key(const std::string & key) const;

    // Values of an absent key are absent. throws ModelLoadError for a value of another type
    bool                       is_array(const std::string & key) const;
    std::optional<int64_t>     integer(const std::string & key) const;
    std::optional<double>      number(const std::string & key) const;  // F32 or F64
    std::optional<bool>        boolean(const std::string & key) const;
    std::optional<std::string> text(const std::string & key) const;
    std::vector<int64_t>       integers(const std::string & key) const;  // of an array; empty when absent
    std::vector<std::string>   texts(const std::string & key) const;     // of an array; empty when absent
    std::vector<bool>          booleans(const std::string & key) const;  // of an array; empty when absent

    // throws ModelLoadError naming the key when it is absent
    int64_t required_integer(const std::string & key) const;

    bool      has_tensor(const std::string & name) const;
    ggml_type type(const std::string & name) const;     // of a tensor that is there
    size_t    n_bytes(const std::string & name) const;  // of a tensor that is there
    bool      is_f32(const std::string & name) const;
    // Whether its numbers can be read as F32: floats and quantized types, not integers
    bool                     is_readable(const std::string & name) const;
    std::vector<std::string> tensor_names() const;
    // The content of an I64 tensor. throws ModelLoadError for another type or a file that ends before it
    std::vector<int64_t> read_integers(const std::string & name) const;
    // ggml order, trailing ones removed; empty when absent
    std::vector<int64_t> shape(const std::string & name) const;

private:
    [[noreturn]] void wrong_type(const std::string & key, const char * wanted) const;

    std::string      path_;
    std::string      architecture_;
    gguf_context_ptr gguf_;
    ggml_context_ptr tensors_;
};

}  // namespace dflash2
