#include "dflash2-common.h"
#include "dflash2-cpu.h"
#include "ggml-cpu.h"
#include "ops.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

using dflash2::Range;
using dflash2::row_of;
using dflash2::share_of;

// Row `id` of a table of any type as F32
void read_row(const ggml_tensor * table, int64_t id, float * row) {
    GGML_ASSERT(id >= 0 && id < table->ne[1]);
    const void * data = row_of(table, id);
    switch (table->type) {
    case GGML_TYPE_F32:
        std::memcpy(row, data, table->ne[0] * sizeof(float));
        break;
    case GGML_TYPE_F16:
        ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) data, row, table->ne[0]);
        break;
    case GGML_TYPE_BF16:
        ggml_cpu_bf16_to_fp32((const ggml_bf16_t *) data, row, table->ne[0]);
        break;
    default:
        ggml_get_type_traits(table->type)->to_float(data, row, table->ne[0]);
    }
}

float transformed(float logit, float multiplier, float softcap) {
    if (multiplier != 0.0f) {
        logit *= multiplier;
    }
    return softcap == 0.0f ? logit : softcap * std::tanh(logit / softcap);
}

// Floats of the memory of one thread: of a slot the rows of its candidates, their logits, and one predecessor's row
size_t floats_per_thread(const ggml_tensor * dst) {
    const size_t n_cand = dst->ne[0];
    const size_t rank   = dst->src[2]->ne[0];
    return GGML_PAD(n_cand * rank + n_cand + rank, CACHE_LINE_SIZE_F32);
}

}  // namespace

size_t ggml_dflash2_score_work_size(const ggml_tensor * node, int n_tasks) {
    return n_tasks * floats_per_thread(node) * sizeof(float) + CACHE_LINE_SIZE;
}

void ggml_compute_forward_dflash2_score(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * logits      = dst->src[0];
    const ggml_tensor * gate        = dst->src[2];
    const ggml_tensor * predecessor = dst->src[3];
    const ggml_tensor * successor   = dst->src[4];
    const ggml_tensor * anchors     = dst->src[5];

    const int64_t n_slots    = ggml_get_op_params_i32(dst, 0);
    const float   multiplier = ggml_get_op_params_f32(dst, 1);
    const float   softcap    = ggml_get_op_params_f32(dst, 2);
    const int64_t n_cand     = dst->ne[0];
    const int64_t n_rows     = logits->ne[1];
    const int64_t rank       = gate->ne[0];

    // a vector that lies across two cache lines takes twice as long to read
    float * const memory     = (float *) GGML_PAD((uintptr_t) params->wdata, CACHE_LINE_SIZE);
    float * const successors = memory + params->ith * floats_per_thread(dst);
    float * const unary      = successors + n_cand * rank;
    float * const weight     = unary + n_cand;

    // threads that would have no slot take some predecessors of one
    const int64_t n_parts = std::clamp<int64_t>(params->nth / n_rows, 1, n_cand);
    const Range   share   = share_of(params, n_rows * n_parts);
    for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t   row  = item / n_parts;
        const int64_t   part = item % n_parts;
        const int64_t   slot = row % n_slots;
        const int32_t * ids  = (const int32_t *) dst->src[1]->data + row * n_cand;
        for (int64_t c = 0; c < n_cand; ++c) {
            read_row(successor, ids[c], successors + c * rank);
            unary[c] = transformed(row_of(logits, row)[ids[c]], multiplier, softcap);
        }
        const Range   predecessors = { n_cand * part / n_parts, n_cand * (part + 1) / n_parts };
        float * const scores       = (float *) dst->data + row * n_cand * n_cand;
        for (int64_t p = predecessors.begin; p < predecessors.end; ++p) {
            float * const out = scores + p * n_cand;
            if (slot == 0 && p > predecessors.begin) {  // all of them are the anchor
                std::copy(out - n_cand, out, out);
                continue;
            }
            const char *  anchor = (const char *) anchors->data + row / n_slots * anchors->nb[anchors->ne[0] == 1];
            const int64_t before = slot > 0 ? ids[p - n_cand] : *(const int32_t *) anchor;
            read_row(predecessor, before, weight);
            ggml_vec_mul_f32(rank, weight, weight, row_of(gate, row));
            for (int64_t c = 0; c < n_cand; ++c) {
                float sum;
                ggml_vec_dot_f32(rank, &sum, 0, weight, 0, successors + c * rank, 0, 1);
                out[c] = unary[c] + sum;
            }
        }
    }
}
