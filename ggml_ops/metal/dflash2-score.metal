// Scores of every candidate of a slot after every candidate of the slot before it: see ggml_dflash2_score.
//
// A threadgroup has a thread for every candidate (x) and for as many predecessors (y) as then fit: up to 16 candidates
// that is one group a row, and no table row is gathered twice. It goes through the rank in tiles, for which its threads
// together bring the candidates' and the gated predecessors' rows into its memory.

// How row elements of a table are read, by its type

struct dflash2_f32 {
    static float at(device const char * row, int i) { return ((device const float *) row)[i]; }
};

struct dflash2_f16 {
    static float at(device const char * row, int i) { return ((device const half *) row)[i]; }
};

// The upper half of an F32. As bits, since not every device has bfloat.
struct dflash2_bf16 {
    static float at(device const char * row, int i) {
        return as_type<float>((uint) ((device const ushort *) row)[i] << 16);
    }
};

// Blocks of 32: an F16 scale, then signed bytes
struct dflash2_q8_0 {
    static float at(device const char * row, int i) {
        device const char * block = row + i / 32 * 34;
        const float         scale = *(device const half *) block;
        return scale * ((device const int8_t *) block)[2 + i % 32];
    }
};

// Blocks of 32: an F16 scale, then 16 bytes; value i is in the lower and value 16 + i in the upper half, 8 too great
struct dflash2_q4_0 {
    static float at(device const char * row, int i) {
        device const char * block = row + i / 32 * 18;
        const float         scale = *(device const half *) block;
        const int           two   = ((device const uint8_t *) block)[2 + i % 16];
        return scale * ((i % 32 < 16 ? two & 15 : two >> 4) - 8);
    }
};

template <typename table>
kernel void kernel_dflash2_score(
        constant ggml_metal_kargs_dflash2_score & args        [[buffer(0)]],
        device const char *                       logits      [[buffer(1)]],
        device const int *                        ids         [[buffer(2)]],
        device const char *                       gate        [[buffer(3)]],
        device const char *                       predecessor [[buffer(4)]],
        device const char *                       successor   [[buffer(5)]],
        device const char *                       anchors     [[buffer(6)]],
        device float *                            dst         [[buffer(7)]],
        threadgroup float *                       tile        [[threadgroup(0)]],
        uint3                                     group       [[threadgroup_position_in_grid]],
        uint3                                     at          [[thread_position_in_threadgroup]],
        uint3                                     n_threads   [[threads_per_threadgroup]]) {
    const int            row      = group.y;
    const int            k        = args.k;
    const int            c        = at.x;
    const int            first_p  = group.x * n_threads.y;
    const int            n_p      = min((int) n_threads.y, k - first_p);
    const bool           follows  = row % args.n_slots > 0;
    const int            anchor   = *(device const int *) (anchors + row / args.n_slots * args.nb_anchors);
    device const int *   row_ids  = ids + row * k;
    device const float * row_gate = (device const float *) (gate + row * args.nb_gate);

    threadgroup float * candidates   = tile;
    threadgroup float * predecessors = tile + k * DFLASH2_SCORE_STRIDE;

    float score = 0.0f;
    for (int start = 0; start < args.rank; start += DFLASH2_SCORE_TILE) {
        const int n = min((int) DFLASH2_SCORE_TILE, args.rank - start);
        for (int j = at.y * k + c; j < (k + n_p) * DFLASH2_SCORE_TILE; j += k * n_threads.y) {
            const int owner = j / DFLASH2_SCORE_TILE;
            const int i     = j % DFLASH2_SCORE_TILE;
            if (i < n && owner < k) {
                const int id = row_ids[owner];
                candidates[owner * DFLASH2_SCORE_STRIDE + i] = table::at(successor + id * args.nb_table, start + i);
            } else if (i < n) {
                const int p      = owner - k;
                const int before = follows ? ids[(row - 1) * k + first_p + p] : anchor;
                predecessors[p * DFLASH2_SCORE_STRIDE + i] =
                    table::at(predecessor + before * args.nb_table, start + i) * row_gate[start + i];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if ((int) at.y < n_p) {
            for (int i = 0; i < n; ++i) {
                score += predecessors[at.y * DFLASH2_SCORE_STRIDE + i] * candidates[c * DFLASH2_SCORE_STRIDE + i];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    if ((int) at.y < n_p) {
        float unary = args.multiplier * ((device const float *) (logits + row * args.nb_logits))[row_ids[c]];
        if (args.softcap != 0.0f) {
            unary = args.softcap * precise::tanh(unary / args.softcap);
        }
        dst[((uint64_t) row * k + first_p + at.y) * k + c] = unary + score;
    }
}

typedef decltype(kernel_dflash2_score<dflash2_f32>) kernel_dflash2_score_t;

template [[host_name("kernel_dflash2_score_f32")]]  kernel kernel_dflash2_score_t kernel_dflash2_score<dflash2_f32>;
template [[host_name("kernel_dflash2_score_f16")]]  kernel kernel_dflash2_score_t kernel_dflash2_score<dflash2_f16>;
template [[host_name("kernel_dflash2_score_bf16")]] kernel kernel_dflash2_score_t kernel_dflash2_score<dflash2_bf16>;
template [[host_name("kernel_dflash2_score_q8_0")]] kernel kernel_dflash2_score_t kernel_dflash2_score<dflash2_q8_0>;
template [[host_name("kernel_dflash2_score_q4_0")]] kernel kernel_dflash2_score_t kernel_dflash2_score<dflash2_q4_0>;
