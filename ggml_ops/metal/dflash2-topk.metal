// The k greatest logits of each row: see ggml_dflash2_topk.
//
// A threadgroup takes the k best of one chunk of a row, which its threads hold in registers: k times the best of all,
// found within each SIMD group and then among those. A row of several chunks leaves as many lists of k candidates, to
// which the same is done, until one list is left. Each logit is read once.

typedef ggml_metal_dflash2_candidate dflash2_candidate;

// Stands where there is none, and is worse than any
static inline dflash2_candidate dflash2_no_candidate() {
    return { 0, 0xffffffff };
}

// The bits of a logit as an integer in the order of the floats, never 0. The floats themselves are not compared: Metal
// compiles with fast math, which knows no NaN.
static inline uint dflash2_key(uint bits) {
    const uint magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {  // NaN counts as -inf
        bits = 0xff800000;
    }
    if (magnitude == 0) {  // -0 is 0
        bits = 0;
    }
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

static inline bool dflash2_is_better(dflash2_candidate a, dflash2_candidate b) {
    return a.key > b.key || (a.key == b.key && a.id < b.id);
}

static inline dflash2_candidate dflash2_best_held(thread const dflash2_candidate * held) {
    dflash2_candidate best = held[0];
#pragma unroll
    for (int i = 1; i < DFLASH2_TOPK_HELD; ++i) {
        if (dflash2_is_better(held[i], best)) {
            best = held[i];
        }
    }
    return best;
}

static inline dflash2_candidate dflash2_best_of_simdgroup(dflash2_candidate mine) {
    const uint key = simd_max(mine.key);
    const uint id  = simd_min(mine.key == key ? mine.id : 0xffffffff);
    return { key, id };
}

// Writes the k best of what the threads of the group hold, best first: as ids if this is the row's only list.
static inline void dflash2_take_best(
        thread dflash2_candidate *               held,
        constant ggml_metal_kargs_dflash2_topk & args,
        device dflash2_candidate *               lists,
        device int *                             ids,
        threadgroup dflash2_candidate *          bests,
        uint3                                    group,
        uint                                     simdgroup,
        uint                                     lane) {
    const uint     n_simdgroups = DFLASH2_N_THREADS / DFLASH2_SIMD_WIDTH;
    const uint64_t first        = ((uint64_t) group.y * args.n_lists + group.x) * args.k;

    dflash2_candidate mine = dflash2_best_held(held);
    dflash2_candidate ours = dflash2_best_of_simdgroup(mine);
    for (int i = 0; i < args.k; ++i) {
        // By turns, so that one barrier a step is enough: who writes here again has passed the next step's barrier,
        // which nobody reaches before having read.
        threadgroup dflash2_candidate * turn = bests + i % 2 * n_simdgroups;
        if (lane == 0) {
            turn[simdgroup].key = ours.key;
            turn[simdgroup].id  = ours.id;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        dflash2_candidate best = dflash2_no_candidate();
        if (lane < n_simdgroups) {
            best.key = turn[lane].key;
            best.id  = turn[lane].id;
        }
        best = dflash2_best_of_simdgroup(best);

        if (simdgroup == 0 && lane == 0) {
            if (args.n_lists == 1) {
                ids[first + i] = best.id;
            } else {
                lists[first + i].key = best.key;
                lists[first + i].id  = best.id;
            }
        }
        if (best.id == ours.id) {  // the same in all lanes
            if (best.id == mine.id) {
#pragma unroll
                for (int j = 0; j < DFLASH2_TOPK_HELD; ++j) {
                    if (held[j].id == best.id) {
                        held[j] = dflash2_no_candidate();
                    }
                }
                mine = dflash2_best_held(held);
            }
            ours = dflash2_best_of_simdgroup(mine);
        }
    }
}

// The first stage
kernel void kernel_dflash2_topk_f32(
        constant ggml_metal_kargs_dflash2_topk & args      [[buffer(0)]],
        device const char *                      logits    [[buffer(1)]],
        device dflash2_candidate *               lists     [[buffer(2)]],
        device int *                             ids       [[buffer(3)]],
        threadgroup dflash2_candidate *          bests     [[threadgroup(0)]],
        uint3                                    group     [[threadgroup_position_in_grid]],
        uint                                     index     [[thread_index_in_threadgroup]],
        uint                                     simdgroup [[simdgroup_index_in_threadgroup]],
        uint                                     lane      [[thread_index_in_simdgroup]]) {
    device const uint * row = (device const uint *) (logits + group.y * args.nb_logits);

    dflash2_candidate held[DFLASH2_TOPK_HELD];
#pragma unroll
    for (int i = 0; i < DFLASH2_TOPK_HELD; ++i) {
        const uint id = group.x * DFLASH2_TOPK_CHUNK + i * DFLASH2_N_THREADS + index;
        held[i]       = dflash2_no_candidate();
        if (id < (uint) args.n) {
            held[i].key = dflash2_key(row[id]);
            held[i].id  = id;
        }
    }
    dflash2_take_best(held, args, lists, ids, bests, group, simdgroup, lane);
}

// The stages after it, each from the lists of the one before
kernel void kernel_dflash2_topk_merge(
        constant ggml_metal_kargs_dflash2_topk & args      [[buffer(0)]],
        device const dflash2_candidate *         from      [[buffer(1)]],
        device dflash2_candidate *               lists     [[buffer(2)]],
        device int *                             ids       [[buffer(3)]],
        threadgroup dflash2_candidate *          bests     [[threadgroup(0)]],
        uint3                                    group     [[threadgroup_position_in_grid]],
        uint                                     index     [[thread_index_in_threadgroup]],
        uint                                     simdgroup [[simdgroup_index_in_threadgroup]],
        uint                                     lane      [[thread_index_in_simdgroup]]) {
    device const dflash2_candidate * row = from + (uint64_t) group.y * args.n;

    dflash2_candidate held[DFLASH2_TOPK_HELD];
#pragma unroll
    for (int i = 0; i < DFLASH2_TOPK_HELD; ++i) {
        const uint j = group.x * DFLASH2_TOPK_CHUNK + i * DFLASH2_N_THREADS + index;
        held[i]      = dflash2_no_candidate();
        if (j < (uint) args.n) {
            held[i].key = row[j].key;
            held[i].id  = row[j].id;
        }
    }
    dflash2_take_best(held, args, lists, ids, bests, group, simdgroup, lane);
}
