#include "gguf_file.h"

#include "dflash2/errors.h"
#include "ggml.h"
#include "logging.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace dflash2 {

namespace {

// Says what a path that is no GGUF is instead: the mistakes people make have their own remedies.
void check_kind(const std::string & path) {
    namespace fs = std::filesystem;

    std::error_code error;
    const auto      status = fs::status(fs::u8path(path), error);
    if (!fs::exists(status)) {
        throw FileNotFound("[load] no such file: " + path);
    }
    if (fs::is_directory(status)) {
        throw ModelLoadError("[load] " + path +
                             " is a folder, a GGUF file is needed: convert a checkpoint with `dflash2 convert`");
    }

    std::ifstream file(fs::u8path(path), std::ios::binary);
    if (!file) {
        throw FileNotFound("[load] cannot open " + path + ": " + std::strerror(errno));
    }
    std::array<char, 9> head = {};
    file.read(head.data(), head.size());
    if (file.gcount() >= 4 && std::memcmp(head.data(), "GGUF", 4) == 0) {
        return;
    }
    // safetensors: 8 bytes of header length, then JSON
    if (file.gcount() == 9 && head[8] == '{') {
        throw ModelLoadError("[load] " + path +
                             " is a safetensors file, a GGUF is needed: convert it with `dflash2 convert`");
    }
    throw ModelLoadError("[load] " + path + " is no GGUF file: it does not begin with the letters GGUF");
}

bool is_integer(gguf_type type) {
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
        return true;
    default:
        return false;
    }
}

}  // namespace

GgufFile::GgufFile(const std::string & path) : path_(path) {
    start_llama();
    check_kind(path);

    const FirstError errors;
    ggml_context *   tensors = nullptr;
    gguf_init_params params  = {};
    params.no_alloc          = true;
    params.ctx               = &tensors;
    gguf_.reset(gguf_init_from_file(path.c_str(), params));
    tensors_.reset(tensors);
    if (!gguf_) {
        throw ModelLoadError("[load] " + path + " is damaged or cut short (" + errors.cause() +
                             "): fetch or convert it again");
    }
    architecture_ = text("general.architecture").value_or("");
}

bool GgufFile::has_key(const std::string & key) const {
    return gguf_find_key(gguf_.get(), key.c_str()) >= 0;
}

void GgufFile::wrong_type(const std::string & key, const char * wanted) const {
    const char * found = gguf_type_name(gguf_get_kv_type(gguf_.get(), gguf_find_key(gguf_.get(), key.c_str())));
    throw ModelLoadError("[load] " + path_ + ": key " + key + " is of type " + found + ", " + wanted +
                         " is needed: convert the file again");
}

std::optional<int64_t> GgufFile::integer(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    switch (gguf_get_kv_type(gguf_.get(), id)) {
    case GGUF_TYPE_UINT32:
        return gguf_get_val_u32(gguf_.get(), id);
    case GGUF_TYPE_INT32:
        return gguf_get_val_i32(gguf_.get(), id);
    case GGUF_TYPE_UINT16:
        return gguf_get_val_u16(gguf_.get(), id);
    case GGUF_TYPE_UINT64:
        return (int64_t) gguf_get_val_u64(gguf_.get(), id);
    case GGUF_TYPE_INT64:
        return gguf_get_val_i64(gguf_.get(), id);
    default:
        wrong_type(key, "an integer");
    }
}

int64_t GgufFile::required_integer(const std::string & key) const {
    const auto value = integer(key);
    if (!value) {
        throw ModelLoadError("[load] " + path_ + ": key " + key + " is missing: convert the file again");
    }
    return *value;
}

bool GgufFile::is_array(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    return id >= 0 && gguf_get_kv_type(gguf_.get(), id) == GGUF_TYPE_ARRAY;
}

std::optional<double> GgufFile::number(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    switch (gguf_get_kv_type(gguf_.get(), id)) {
    case GGUF_TYPE_FLOAT32:
        return gguf_get_val_f32(gguf_.get(), id);
    case GGUF_TYPE_FLOAT64:
        return gguf_get_val_f64(gguf_.get(), id);
    default:
        wrong_type(key, "a number");
    }
}

std::optional<bool> GgufFile::boolean(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_BOOL) {
        wrong_type(key, "a bool");
    }
    return gguf_get_val_bool(gguf_.get(), id);
}

std::optional<std::string> GgufFile::text(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_STRING) {
        wrong_type(key, "a string");
    }
    return std::string(gguf_get_val_str(gguf_.get(), id));
}

std::vector<int64_t> GgufFile::integers(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        return {};
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY || !is_integer(gguf_get_arr_type(gguf_.get(), id))) {
        wrong_type(key, "an array of integers");
    }
    const size_t         n    = gguf_get_arr_n(gguf_.get(), id);
    const void *         data = gguf_get_arr_data(gguf_.get(), id);
    std::vector<int64_t> result(n);
    for (size_t i = 0; i < n; ++i) {
        switch (gguf_get_arr_type(gguf_.get(), id)) {
        case GGUF_TYPE_UINT32:
            result[i] = static_cast<const uint32_t *>(data)[i];
            break;
        case GGUF_TYPE_INT32:
            result[i] = static_cast<const int32_t *>(data)[i];
            break;
        case GGUF_TYPE_UINT64:
        case GGUF_TYPE_INT64:
            result[i] = static_cast<const int64_t *>(data)[i];
            break;
        default:
            wrong_type(key, "an array of 32-bit integers");
        }
    }
    return result;
}

std::vector<std::string> GgufFile::texts(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        return {};
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(gguf_.get(), id) != GGUF_TYPE_STRING) {
        wrong_type(key, "an array of strings");
    }
    std::vector<std::string> result(gguf_get_arr_n(gguf_.get(), id));
    for (size_t i = 0; i < result.size(); ++i) {
        result[i] = gguf_get_arr_str(gguf_.get(), id, i);
    }
    return result;
}

std::vector<bool> GgufFile::booleans(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        return {};
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(gguf_.get(), id) != GGUF_TYPE_BOOL) {
        wrong_type(key, "an array of bools");
    }
    const auto * data = static_cast<const int8_t *>(gguf_get_arr_data(gguf_.get(), id));
    return std::vector<bool>(data, data + gguf_get_arr_n(gguf_.get(), id));
}

bool GgufFile::has_tensor(const std::string & name) const {
    return gguf_find_tensor(gguf_.get(), name.c_str()) >= 0;
}

bool GgufFile::is_readable(const std::string & name) const {
    const int64_t id = gguf_find_tensor(gguf_.get(), name.c_str());
    if (id < 0) {
        return false;
    }
    const ggml_type type = gguf_get_tensor_type(gguf_.get(), id);
    return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float;
}

bool GgufFile::is_f32(const std::string & name) const {
    const int64_t id = gguf_find_tensor(gguf_.get(), name.c_str());
    return id >= 0 && gguf_get_tensor_type(gguf_.get(), id) == GGML_TYPE_F32;
}

ggml_type GgufFile::type(const std::string & name) const {
    return gguf_get_tensor_type(gguf_.get(), gguf_find_tensor(gguf_.get(), name.c_str()));
}

size_t GgufFile::n_bytes(const std::string & name) const {
    return gguf_get_tensor_size(gguf_.get(), gguf_find_tensor(gguf_.get(), name.c_str()));
}

std::vector<std::string> GgufFile::tensor_names() const {
    std::vector<std::string> result((size_t) gguf_get_n_tensors(gguf_.get()));
    for (size_t i = 0; i < result.size(); ++i) {
        result[i] = gguf_get_tensor_name(gguf_.get(), (int64_t) i);
    }
    return result;
}

std::vector<int64_t> GgufFile::read_integers(const std::string & name) const {
    const int64_t id = gguf_find_tensor(gguf_.get(), name.c_str());
    if (id < 0 || gguf_get_tensor_type(gguf_.get(), id) != GGML_TYPE_I64) {
        throw ModelLoadError("[load] " + path_ + ": tensor " + name + " is not I64: convert the file again");
    }
    std::vector<int64_t> result(gguf_get_tensor_size(gguf_.get(), id) / sizeof(int64_t));
    std::ifstream        file(std::filesystem::u8path(path_), std::ios::binary);
    file.seekg((std::streamoff) (gguf_get_data_offset(gguf_.get()) + gguf_get_tensor_offset(gguf_.get(), id)));
    if (!file.read(reinterpret_cast<char *>(result.data()), (std::streamsize) (result.size() * sizeof(int64_t)))) {
        throw ModelLoadError("[load] " + path_ + " is cut short: fetch or convert it again");
    }
    return result;
}

std::vector<int64_t> GgufFile::shape(const std::string & name) const {
    const ggml_tensor * tensor = ggml_get_tensor(tensors_.get(), name.c_str());
    if (!tensor) {
        return {};
    }
    return { tensor->ne, tensor->ne + ggml_n_dims(tensor) };
}

}  // namespace dflash2
