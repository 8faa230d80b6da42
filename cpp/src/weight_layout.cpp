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
// which they do not take. With AMX, targets of 135M and 0.6B:
//
//   Q4_1    as ggml lays it out   4.7   7.5   8.5   13 1010      as in the file   7.7   8.0  11.1   18  570
//   Q8_0                          6.4  10.6  10.4   15 1010                       7.7   8.3  10.4   19  660
//   F16                          15.1  18.0  21.5   41  570                      11.8  12.3  14.5   18  615
//   Q8_0, 0.6B                   23.5  38.0  40.7   52  208                      26.6  29.6  37.0   54  190
//
// so whatever is quantised stays with ggml. With narrower vectors a target of 0.6B in Q4_K_M took 59, 63 and 126 ms for 2, 4
// and 8 rows laid out anew, and 70, 77 and 104 as in the file, on a machine that drifted by a fifth: undecided.
bool keeps_layout(const GgufFile & file) {
    const std::vector<std::string> features = cpu_features();
    const auto                     has      = [&](const char * name) {
        return std::find(features.begin(), features.end(), name) != features.end();
    };
    if (!has("AVX512_VNNI")) {
        return false;
    }
    const bool amx    = has("AMX_INT8");
    size_t     better = 0;
    size_t     worse  = 0;
    for (const std::string & name : file.tensor_names()) {
        const bool of_experts = file.shape(name).size() > 2;
        switch (file.type(name)) {
        case GGML_TYPE_Q4_K:
            (amx || of_experts ? worse : better) += file.n_bytes(name);
            break;
        case GGML_TYPE_F16:  // the same bytes for AMX, but other products
            better += amx && !of_experts ? file.n_bytes(name) : 0;
            break;
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_IQ4_XS:
            worse += amx ? file.n_bytes(name) : 0;
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
