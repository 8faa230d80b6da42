#include "../../cpp/src/weight_layout.h"
#include "check.h"
#include "dflash2/system.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace dflash2;

// Of a file with one tensor for each type, of so many rows, for each expert where there are some
bool keeps(const std::vector<std::pair<ggml_type, int64_t>> & tensors, int64_t n_experts = 1) {
    const std::filesystem::path path = std::filesystem::temp_directory_path() / "dflash2-test-weight-layout.gguf";
    ggml_context_ptr            context(ggml_init({ 1 << 20, nullptr, false }));
    gguf_context_ptr            file(gguf_init_empty());
    for (const auto & [type, n_rows] : tensors) {
        ggml_tensor * tensor = ggml_new_tensor_3d(context.get(), type, 256, n_rows, n_experts);
        ggml_set_name(tensor, ("weights." + std::to_string(gguf_get_n_tensors(file.get()))).c_str());
        std::fill_n((char *) tensor->data, ggml_nbytes(tensor), 0);
        gguf_add_tensor(file.get(), tensor);
    }
    CHECK(gguf_write_to_file(file.get(), path.u8string().c_str(), /*only_meta=*/false));
    const bool result = keeps_layout(GgufFile(path.u8string()));
    std::filesystem::remove(path);
    return result;
}

bool has(const char * feature) {
    const std::vector<std::string> features = cpu_features();
    return std::count(features.begin(), features.end(), feature) > 0;
}

}  // namespace

int main() {
    // whether the products of this computer are those that were measured
    const bool amx  = has("AVX512_VNNI") && has("AMX_INT8");
    const bool wide = has("AVX512_VNNI") && !amx;
    CHECK(keeps({ { GGML_TYPE_Q4_K, 8 } }) == wide);
    CHECK(keeps({ { GGML_TYPE_Q4_K, 8 }, { GGML_TYPE_Q6_K, 90 }, { GGML_TYPE_F32, 90 } }) == wide);
    CHECK(keeps({ { GGML_TYPE_Q4_K, 8 }, { GGML_TYPE_Q4_0, 4 } }) == wide);
    CHECK(!keeps({ { GGML_TYPE_Q4_K, 8 }, { GGML_TYPE_Q4_0, 9 } }));
    CHECK(!keeps({ { GGML_TYPE_Q4_0, 8 }, { GGML_TYPE_Q6_K, 8 } }));
    CHECK(!keeps({ { GGML_TYPE_Q4_K, 8 } }, /*n_experts=*/2));
    CHECK(!keeps({ { GGML_TYPE_F16, 8 }, { GGML_TYPE_Q8_0, 20 } }));
    CHECK(!keeps({ { GGML_TYPE_F16, 8 } }, /*n_experts=*/2));
    CHECK(keeps({ { GGML_TYPE_F16, 8 } }) == amx);
    CHECK(keeps({ { GGML_TYPE_F16, 8 }, { GGML_TYPE_Q8_0, 8 } }) == amx);
    for (const ggml_type type : { GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS }) {
        CHECK(keeps({ { GGML_TYPE_Q4_K, 8 }, { type, 8 } }) == wide);
    }
    return 0;
}
