"""`dflash2 convert`: drafters from safetensors to GGUF, and back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dflash2.cli.output import print_json
from dflash2.cli.progress import ProgressBar
from dflash2.programs import program_path

if TYPE_CHECKING:
    from dflash2.cli.arguments import Subparsers
    from dflash2.convert.drafter import Plan

# of an array that is shown whole; vocabularies are longer
_MOST_ITEMS = 16
_MB = 1e6


def add_parser(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert",
        help="convert a drafter's checkpoint to GGUF",
        description=(
            "Convert a drafter's safetensors checkpoint to a GGUF file for one target, or with "
            "--to-safetensors a drafter's GGUF file back to a checkpoint."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        metavar="SRC",
        help="the checkpoint: its folder, its *.safetensors file, or a hub id 'owner/name'",
    )
    parser.add_argument(
        "--target", metavar="TARGET", help="GGUF file of the target, or its checkpoint's folder"
    )
    parser.add_argument(
        "--vocab", metavar="FILE", help="for a target folder: a GGUF file of the same tokenizer"
    )
    parser.add_argument(
        "--outfile",
        metavar="FILE",
        help="file or folder to write; {ftype} in it stands for the type (default: the source's "
        "name and the type, in the working directory)",
    )
    parser.add_argument(
        "--outtype",
        default="f16",
        metavar="TYPE",
        help="type of the matrices: f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_1, q5_0, q4_k_m, q4_1 "
        "or q4_0 (default: f16)",
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit on the hub")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read the file back and compare every key and weight with the source",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print keys and tensors, and write nothing"
    )
    parser.add_argument(
        "--to-safetensors",
        action="store_true",
        help="SRC is a drafter's GGUF file, --outfile a folder; quantized tensors become bf16",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run, error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Convert and say what was written."""
    if args.to_safetensors:
        return _to_safetensors(args)
    if args.target is None:
        args.error("no target: give --target FILE")
    # imported late, as it loads numpy and gguf
    from dflash2.convert.drafter import plan_drafter, write_drafter
    from dflash2.convert.quantize import QUANTIZER_TYPES

    plan = plan_drafter(
        args.source,
        args.target,
        args.outfile,
        vocab=args.vocab,
        outtype=args.outtype,
        force=args.force,
        revision=args.revision,
        quantizer=program_path("llama-quantize") if args.outtype in QUANTIZER_TYPES else None,
    )
    if args.dry_run:
        _print_plan(plan, args.json)
        return 0
    with ProgressBar(plan.n_bytes) as bar:
        path = write_drafter(plan, verify=args.verify, progress=bar.add)
    _report(path, plan.source_bytes, bar.seconds, args)
    return 0


def _to_safetensors(args: argparse.Namespace) -> int:
    for flag in ("target", "vocab", "revision", "verify", "dry_run"):
        if getattr(args, flag):
            args.error(f"--{flag.replace('_', '-')} has no meaning with --to-safetensors")
    from dflash2.convert.to_safetensors import convert_to_safetensors

    with ProgressBar(n_bytes := Path(args.source).stat().st_size) as bar:
        folder = convert_to_safetensors(
            args.source, args.outfile, force=args.force, progress=bar.add
        )
    _report(folder, n_bytes, bar.seconds, args)
    return 0


def _report(path: Path, bytes_read: int, seconds: float, args: argparse.Namespace) -> None:
    speed = bytes_read / _MB / seconds
    if args.json:
        print_json(
            {
                "path": str(path),
                "verified": args.verify,
                "bytes_read": bytes_read,
                "seconds": seconds,
                "mb_per_second": speed,
            }
        )
        return
    verified = " and verified it" if args.verify else ""
    print(f"wrote {path}{verified}: {bytes_read / _MB:.1f} MB read, {speed:.0f} MB/s")


def _print_plan(plan: Plan, as_json: bool) -> None:
    from dflash2.convert.quantize import QUANTIZER_TYPES

    metadata = {key: _shown(entry.value) for key, entry in plan.metadata.items()}
    tensors = [
        {"name": tensor.name, "shape": list(tensor.shape), "type": tensor.type.name}
        for tensor in plan.tensors
    ]
    if as_json:
        print_json(
            {"path": str(plan.path), "type": plan.outtype, "metadata": metadata, "tensors": tensors}
        )
        return
    made_by = " by llama-quantize from this" if plan.outtype in QUANTIZER_TYPES else ""
    print(f"{plan.path} would be made{made_by}:\n")
    for key, value in metadata.items():
        print(f"{key} = {value!r}")
    print()
    width = max(len(tensor.name) for tensor in plan.tensors)
    for tensor in plan.tensors:
        print(f"{tensor.name:<{width}}  {tensor.type.name:<5} {list(tensor.shape)}")


def _shown(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if not isinstance(value, list):
        return value
    return [_shown(item) for item in value] if len(value) <= _MOST_ITEMS else f"{len(value)} items"
