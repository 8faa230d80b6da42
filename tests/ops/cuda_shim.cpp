// The CUDA ops as a device of the shim, for test_gpu_shim.py.

#include "dflash2.cuh"

bool shim::supports(const ggml_tensor * node) {
    return ggml_cuda_dflash2_supported(node);
}

void shim::compute(ggml_tensor * node) {
    ggml_backend_cuda_context context;
    switch (node->op) {
    case GGML_OP_DFLASH2_CONV:
        ggml_cuda_op_dflash2_conv(context, node);
        break;
    case GGML_OP_DFLASH2_TOPK:
        ggml_cuda_op_dflash2_topk(context, node);
        break;
    default:
        ggml_cuda_op_dflash2_score(context, node);
    }
}

// ggml-base has it, which is not linked.
void ggml_abort(const char * file, int line, const char *, ...) {
    throw shim::Fault(std::string(file) + ":" + std::to_string(line) + ": ggml_abort");
}
