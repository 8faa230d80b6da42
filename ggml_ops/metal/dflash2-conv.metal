// Dynamic convolution along a block: see ggml_dflash2_conv.
//
// A thread computes one element. A draft pass has few rows: to launch costs more than to read a row again for each tap.
// The order is that of the contract, but Metal, which compiles with fast math, may round a product and its sum at once.
kernel void kernel_dflash2_conv_f32(
        constant ggml_metal_kargs_dflash2_conv & args     [[buffer(0)]],
        device const char *                      x        [[buffer(1)]],
        device const char *                      coeff    [[buffer(2)]],
        device const float *                     base     [[buffer(3)]],
        device const char *                      residual [[buffer(4)]],
        device float *                           dst      [[buffer(5)]],
        uint3                                    at       [[thread_position_in_grid]]) {
    const int c   = at.x;
    const int row = at.y;
    if (c >= args.n_channels) {
        return;
    }
    const int            first     = args.side * args.n_taps;
    const int            n_taps    = min(args.n_taps, row % args.n_block_rows + 1);
    device const float * row_coeff = (device const float *) (coeff + row * args.nb_coeff) + c / args.group_size;

    float y = 0.0f;
    for (int tap = 0; tap < n_taps; ++tap) {
        const float weight = base[(first + tap) * args.n_channels + c] + row_coeff[(first + tap) * args.n_groups];
        y += weight * ((device const float *) (x + (row - tap) * args.nb_x))[c];
    }
    if (args.has_residual) {
        y += ((device const float *) (residual + row * args.nb_residual))[c];
    }
    dst[(uint64_t) row * args.n_channels + c] = y;
}
