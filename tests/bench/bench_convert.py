"""MB/s of a conversion against plain reading of the same file, and its peak memory.

    python tests/bench/bench_convert.py [--json] [--layers 9] [--folder DIR] [--outtypes f16,q8_0]

The checkpoint has the matrices of a drafter for Qwen3-4B; 9 layers of them make 2 GB. The system's
cache of it is dropped before every reading (on Linux only), and reading is measured before and
after the conversions, since disks change their speed. MB are of the checkpoint, read or converted.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from dflash2 import __version__
from dflash2.convert import convert_drafter

HIDDEN, INNER, VOCABULARY, RANK = 2560, 9728, 151936, 256
N_HEAD, N_HEAD_KV, HEAD_DIM = 32, 8, 128
# Weights written at a time; a drafter's repeat with this period.
_PERIOD = 1 << 22


def shapes(n_layers: int) -> dict[str, list[int]]:
    tensors = {
        "fc.weight": [HIDDEN, 5 * HIDDEN],
        "hidden_norm.weight": [HIDDEN],
        "norm.weight": [HIDDEN],
        "candidate_selector.predecessor_codebook": [VOCABULARY, RANK],
        "candidate_selector.successor_codebook": [VOCABULARY, RANK],
        "candidate_selector.hidden_projection.weight": [RANK, HIDDEN],
    }
    for layer in range(n_layers):
        for name, shape in {
            "input_layernorm.weight": [HIDDEN],
            "post_attention_layernorm.weight": [HIDDEN],
            "self_attn.q_proj.weight": [N_HEAD * HEAD_DIM, HIDDEN],
            "self_attn.k_proj.weight": [N_HEAD_KV * HEAD_DIM, HIDDEN],
            "self_attn.v_proj.weight": [N_HEAD_KV * HEAD_DIM, HIDDEN],
            "self_attn.o_proj.weight": [HIDDEN, N_HEAD * HEAD_DIM],
            "self_attn.q_norm.weight": [HEAD_DIM],
            "self_attn.k_norm.weight": [HEAD_DIM],
            "mlp.gate_proj.weight": [INNER, HIDDEN],
            "mlp.up_proj.weight": [INNER, HIDDEN],
            "mlp.down_proj.weight": [HIDDEN, INNER],
            "attention_conv.base_kernel": [2, 2, HIDDEN],
            "attention_conv.kernel_projection.weight": [HIDDEN // 4, HIDDEN],
            "mlp_conv.base_kernel": [2, 2, HIDDEN],
            "mlp_conv.kernel_projection.weight": [HIDDEN // 4, HIDDEN],
        }.items():
            tensors[f"layers.{layer}.{name}"] = shape
    return tensors


def write_checkpoint(folder: Path, n_layers: int) -> Path:
    """Writes a checkpoint and returns its weights' file."""
    folder.mkdir()
    config = {
        "architectures": ["DFlash2DraftModel"],
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": n_layers,
        "num_attention_heads": N_HEAD,
        "num_key_value_heads": N_HEAD_KV,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "vocab_size": VOCABULARY,
        "is_causal": False,
        "dflash_config": {
            "block_size": 8,
            "mask_token_id": 151669,
            "target_layer_ids": [1, 9, 17, 25, 33],
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": RANK,
            "selector_top_k": 16,
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in shapes(n_layers).items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    weights = np.random.default_rng(0).standard_normal(_PERIOD).astype(np.float32) * 0.02
    period = (weights.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(period)):
            file.write(period[: end - begin])
        os.fsync(file.fileno())
    return path


def write_target(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(36)
    writer.add_token_list([str(token) for token in range(VOCABULARY)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def forget(path: Path) -> None:
    """Drops the system's cache of a file, where it lets us."""
    if sys.platform == "linux":
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_speed(path: Path) -> float:
    forget(path)
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(4 << 20):
            pass
    return path.stat().st_size / 1e6 / (time.perf_counter() - begin)


def convert_speed(weights: Path, target: Path, outfile: Path, outtype: str) -> float:
    forget(weights)
    begin = time.perf_counter()
    convert_drafter(weights.parent, target, outfile, outtype=outtype)  # type: ignore[arg-type]
    seconds = time.perf_counter() - begin
    outfile.unlink()
    return weights.stat().st_size / 1e6 / seconds


def peak_memory() -> float | None:
    """Of this process, in MB."""
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--outtypes", default="f16,q8_0")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        weights = write_checkpoint(folder / "drafter", args.layers)
        target = write_target(folder / "target.gguf")
        size = weights.stat().st_size / 1e6
        reading = [read_speed(weights)]
        speeds = {}
        for outtype in args.outtypes.split(","):
            speeds[outtype] = convert_speed(weights, target, folder / "out.gguf", outtype)
            reading.append(read_speed(weights))
    read = statistics.median(reading)
    result = {
        "version": __version__,
        "cpus": os.cpu_count(),
        "checkpoint_mb": size,
        "read_mb_per_second": read,
        "peak_memory_mb": peak_memory(),
        "rows": [
            {"outtype": outtype, "mb_per_second": speed, "of_reading": speed / read}
            for outtype, speed in speeds.items()
        ],
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print(f"dflash2 {__version__}, {os.cpu_count()} CPUs, checkpoint of {size:.0f} MB")
    print(f"{'plain reading':16}{read:10.0f} MB/s")
    for outtype, speed in speeds.items():
        print(f"{outtype:16}{speed:10.0f} MB/s{speed / read:8.2f} of reading")
    if (memory := peak_memory()) is not None:
        print(f"{'peak memory':16}{memory:10.0f} MB")


if __name__ == "__main__":
    main()
