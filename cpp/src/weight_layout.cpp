#include "weight_layout.h"

#include "dflash2/system.h"

#include <algorithm>

namespace dflash2 {

// On two cores with AVX-512 VNNI, a target of 4B: ms of a pass over 1, 2, 4 and 8 rows, and tokens per second of a prompt
//
//   Q4_K_M  as ggml lays it out  59.5  90.0  142  232   60      as in the file  61.2  69.3  113  193  108
//   Q4_0                         55.9  95.8   92  169   67                      59.0  62.2   88  181   58
//
// so Q4_0 stays with ggml, whose layout is for prompts there, and so do the types that our products do not have, and experts,
// which they do not take. With narrower vectors a target of 0.6B in Q4_K_M took 59, 63 and 126 ms for 2, 4 and 8 rows laid out
// anew, and 70, 77 and 104 as in the file, on a machine that drifted by a fifth: undecided. AMX is beyond ours.
bool keeps_layout(const GgufFile & file) {
    const std::vector<std::string> features = cpu_features();
    const auto                     has      = [&](const char * name) {
        return std::find(features.begin(), features.end(), name) != features.end();
    };
    if (!has("AVX512_VNNI") || has("AMX_INT8")) {
        return false;
    }
    size_t better = 0;
    size_t worse  = 0;
    for (const std::string & name : file.tensor_names()) {
        const bool of_experts = file.shape(name).size() > 2;
        switch (file.type(name)) {
        case GGML_TYPE_Q4_K:
            (of_experts ? worse : better) += file.n_bytes(name);
            break;
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q2_K:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_MXFP4:
            worse += file.n_bytes(name);
            break;
        default:  // is laid out as in the file anyway
            break;
        }
    }
    return better > worse;
}

}  // namespace dflash2
