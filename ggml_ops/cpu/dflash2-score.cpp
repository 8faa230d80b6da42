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

// Floats of the memory of one thread: of a slot the rows of its candidates, the row of one predecessor, and the
// candidates' logits
size_t floats_per_thread(const ggml_tensor * dst) {
    const size_t n_cand = dst->ne[0];
    const size_t rank   = dst->src[2]->ne[0];
    return GGML_PAD(n_cand * rank + rank + n_cand, CACHE_LINE_SIZE_F32);
}

int32_t anchor_of(const ggml_tensor * anchors, int64_t seq) {
    return *(const int32_t *) ((const char *) anchors->data + seq * anchors->nb[anchors->ne[0] == 1]);
}

// Scores of all candidates of a slot after some of its predecessors
void score_slot(ggml_tensor * dst, int64_t row, Range predecessors, float * memory) {
    const ggml_tensor * logits      = dst->src[0];
    const ggml_tensor * gate        = dst->src[2];
    const ggml_tensor * predecessor = dst->src[3];
    const ggml_tensor * successor   = dst->src[4];

    const int64_t n_slots    = ggml_get_op_params_i32(dst, 0);
    const float   multiplier = ggml_get_op_params_f32(dst, 1);
    const float   softcap    = ggml_get_op_params_f32(dst, 2);
    const int64_t n_cand     = dst->ne[0];
    const int64_t rank       = gate->ne[0];
    const bool    is_first   = row % n_slots == 0;

    float * const   successors = memory;
    float * const   weight     = successors + n_cand * rank;
    float * const   unary      = weight + rank;
    const int32_t * ids        = (const int32_t *) dst->src[1]->data + row * n_cand;
    for (int64_t c = 0; c < n_cand; ++c) {
        read_row(successor, ids[c], successors + c * rank);
        unary[c] = transformed(row_of(logits, row)[ids[c]], multiplier, softcap);
    }
    for (int64_t p = predecessors.begin; p < predecessors.end; ++p) {
        float * const scores = (float *) dst->data + (row * n_cand + p) * n_cand;
        if (is_first && p > predecessors.begin) {  // all of them are the anchor
            std::copy(scores - n_cand, scores, scores);
            continue;
        }
        read_row(predecessor, is_first ? anchor_of(dst->src[5], row / n_slots) : ids[p - n_cand], weight);
        ggml_vec_mul_f32((int) rank, weight, weight, row_of(gate, row));
        for (int64_t c = 0; c < n_cand; ++c) {
            float sum;
            ggml_vec_dot_f32((int) rank, &sum, 0, weight, 0, successors + c * rank, 0, 1);
            scores[c] = unary[c] + sum;
        }
    }
}

}  // namespace

size_t ggml_dflash2_score_work_size(const ggml_tensor * node, int n_tasks) {
    return n_tasks * floats_per_thread(node) * sizeof(float) + CACHE_LINE_SIZE;
}

void ggml_compute_forward_dflash2_score(const ggml_compute_params * params, ggml_tensor * dst) {
    // a vector that lies across two cache lines takes twice as long to read
    float * const memory =
        (float *) GGML_PAD((uintptr_t) params->wdata, CACHE_LINE_SIZE) + params->ith * floats_per_thread(dst);

    const int64_t n_cand = dst->ne[0];
    const int64_t n_rows = dst->ne[2] * dst->ne[3];
    // threads that would have no slot take some predecessors of one
    const int64_t n_parts = std::clamp<int64_t>(params->nth / n_rows, 1, n_cand);
    const Range   share   = share_of(params, n_rows * n_parts);
    for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t part = item % n_parts;
        score_slot(dst, item / n_parts, { n_cand * part / n_parts, n_cand * (part + 1) / n_parts }, memory);
    }
}
