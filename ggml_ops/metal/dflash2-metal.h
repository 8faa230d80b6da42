#pragma once

// What ggml-metal calls for the three ops of ggml-dflash2.h.

#include "ggml-metal-device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether a device can run a node; where not, the op is to be composed. The first call compiles the kernels.
bool ggml_metal_dflash2_supported(ggml_metal_device_t dev, const struct ggml_tensor * op);

// Bytes behind the ids, in the same buffer, that topk keeps its lists in
size_t ggml_metal_op_dflash2_topk_extra(const struct ggml_tensor * op);

void ggml_metal_op_dflash2_conv(ggml_metal_device_t dev, ggml_metal_encoder_t enc, const struct ggml_tensor * op);
void ggml_metal_op_dflash2_topk(ggml_metal_device_t dev, ggml_metal_encoder_t enc, const struct ggml_tensor * op);
void ggml_metal_op_dflash2_score(ggml_metal_device_t dev, ggml_metal_encoder_t enc, const struct ggml_tensor * op);

#ifdef __cplusplus
}
#endif
