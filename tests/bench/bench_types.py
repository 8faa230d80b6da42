"""What each type of the demo drafter's tensors costs in acceptance.

    python tests/bench/bench_types.py [--prompts 2] [--tokens 64] [--types f32,f16,...]

Two measures. `drafts` is the share of drafted tokens that equal those of the F32 file, over blocks
that start at every other position of the recorded sequence: it shows small differences. `length` is
the mean acceptance length on the first prompts of each set, greedy, depth 7, one thread. The second
table has files in F16 of which one group of tensors is Q4_0.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from dflash2 import Dflash2Engine, SamplingParams, _core, demo
from dflash2.convert.drafter import plan_drafter, write_drafter
from dflash2.convert.quantize import OUT_TYPES
from dflash2.native import load_backends
from dflash2.programs import program_path
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data"
CHECKPOINT = DATA / "smollm2-135m-dflash2"
DEPTH = 7
GROUPS: dict[str, Callable[[str], bool]] = {
    "fc": lambda name: name == "fc.weight",
    "attention": lambda name: ".attn_" in name and "conv" not in name,
    "MLP": lambda name: ".ffn_" in name and "conv" not in name,
    "convolution projections": lambda name: "_conv_proj" in name,
    "selector": lambda name: name.startswith("selector_"),
}


def convert(outtype: str, path: Path, group: Callable[[str], bool] | None = None) -> int:
    """Writes the drafter, the tensors of the group in Q4_0; returns their or its size."""
    quantizer = program_path("llama-quantize")
    plan = plan_drafter(
        CHECKPOINT,
        demo.target_path(),
        path,
        outtype=outtype,  # type: ignore[arg-type]
        quantizer=quantizer,
        force=True,
    )
    if group is None:
        return write_drafter(plan).stat().st_size
    changed = [
        replace(tensor, type=GGMLQuantizationType.Q4_0)
        if group(tensor.name) and tensor.type is GGMLQuantizationType.F16
        else tensor
        for tensor in plan.tensors
    ]
    write_drafter(replace(plan, tensors=changed))
    return sum(tensor.n_bytes for tensor in plan.tensors if group(tensor.name))


def drafts(drafter: Path) -> NDArray[np.int64]:
    """The greedy path of each block, [blocks, slots]."""
    recorded = np.load(CHECKPOINT / "golden" / "sequence.npz")
    features = recorded["features"].astype(np.float32)
    options = _core.EngineOptions()
    options.model, options.draft = str(demo.target_path()), str(drafter)
    options.device, options.n_threads, options.n_ctx = "cpu", 1, 256
    engine = _core.Engine(options)
    paths = []
    for start in range(8, len(features) - 1, 2):
        ids, scores = engine.draft_lattice(features[:start], int(recorded["token_ids"][start]))
        path, best = [], 0
        for slot in range(DEPTH):
            best = int(scores[slot, best].argmax())
            path.append(int(ids[slot, best]))
        paths.append(path)
    return np.array(paths)


def mean_acceptance_length(drafter: Path, n_prompts: int, n_tokens: int) -> float:
    accepted = steps = 0
    params = SamplingParams(max_tokens=n_tokens)
    options = {"n_ctx": 2048, "n_threads": 1, "depth": DEPTH, "device": "cpu"}
    with Dflash2Engine(demo.target_path(), drafter, **options) as engine:  # type: ignore[arg-type]
        for path in sorted((DATA / "prompts").glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines()[:n_prompts]:
                message = {"role": "user", "content": json.loads(line)["prompt"]}
                stats = engine.chat([message], params).stats
                accepted += stats.accepted_tokens
                steps += stats.verify_steps
    return 1 + accepted / steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=2, help="of each set")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--types", default=",".join(OUT_TYPES))
    args = parser.parse_args()
    load_backends()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.gguf"
        convert("f32", path)
        exact = drafts(path)

        def row(name: str, n_bytes: int) -> None:
            same = (drafts(path) == exact).mean()
            length = mean_acceptance_length(path, args.prompts, args.tokens)
            print(f"| {name} | {n_bytes / 1e6:.1f} | {same:.1%} | {length:.2f} |", flush=True)

        print("| type | MB | drafts | length |\n|---|---|---|---|")
        for outtype in args.types.split(","):
            row(outtype, convert(outtype, path))
        print("\n| Q4_0, the rest F16 | MB in F16 | drafts | length |\n|---|---|---|---|")
        for name, group in GROUPS.items():
            row(name, convert("f16", path, group))
    return 0


if __name__ == "__main__":
    sys.exit(main())
