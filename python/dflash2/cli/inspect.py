"""`dflash2 inspect`: what a drafter is, and whether it fits a target."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dflash2.cli.output import print_json

if TYPE_CHECKING:
    from dflash2.cli.arguments import Subparsers
    from dflash2.convert.inspect import Fit, Inspection


def add_parser(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "inspect",
        help="show what a drafter is and whether it fits a target",
        description=(
            "Show what a drafter is and what it takes at runtime. With --target the status is 1 "
            "unless the two fit."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "drafter", metavar="FILE", help="a drafter's GGUF file, or its checkpoint's folder or file"
    )
    parser.add_argument(
        "--target", metavar="TARGET", help="GGUF file of a target, or its checkpoint's folder"
    )
    parser.add_argument(
        "--vocab", metavar="FILE", help="for a target folder: a GGUF file of the same tokenizer"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=run, error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Print the description; the status is 1 when the drafter does not fit the target."""
    if args.vocab is not None and args.target is None:
        args.error("--vocab belongs to --target")
    # imported late, as it loads numpy and gguf
    from dflash2.convert import inspect_drafter

    inspection = inspect_drafter(args.drafter, args.target, args.vocab)
    if args.json:
        print_json(inspection.as_dict())
    else:
        _print_inspection(inspection)
        if inspection.fit is not None:
            _print_fit(inspection.fit)
    return 1 if inspection.fit is not None and inspection.fit.mismatches else 0


def _print_inspection(found: Inspection) -> None:
    config, memory = found.config, found.memory
    target_layers = f" of {config.num_target_layers}" if config.num_target_layers else ""
    mask = "" if found.mask_token is None else f" {found.mask_token!r}"
    types = ", ".join(f"{count} {name}" for name, count in found.tensor_types.items())
    print(f"{found.path}: {found.family} drafter, {found.format}")
    print(f"weights: {found.n_weights / 1e6:.1f} M in {found.n_tensors} tensors ({types})")
    print(
        f"shape: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, MLP "
        f"{config.intermediate_size}, {config.num_attention_heads} heads "
        f"({config.num_key_value_heads} of keys) of {config.head_dim}"
    )
    print(f"taps: output of target layers {_listed(config.target_layer_ids)}{target_layers}")
    print(
        f"block: {config.block_size} tokens, so {config.block_size - 1} drafted; mask token "
        f"{config.mask_token_id}{mask}; vocabulary {config.vocab_size}"
    )
    print(f"attention: {_attention(found)}")
    if (extra := config.conv_selector) is not None:
        print(
            f"convolution: {extra.conv_kernel_size} taps, groups of {extra.conv_group_size}; "
            f"selector: rank {extra.selector_rank}, {extra.selector_top_k} candidates"
        )
    print(
        f"memory: weights {_size(memory.weights)}, cache {_size(memory.cache_per_1k_tokens)} for "
        f"1000 tokens and {_size(memory.cache_of_windows)} for windows, features "
        f"{_size(memory.features_per_token)} a token"
    )
    print(f"size: {_size(found.n_bytes)}")


def _attention(found: Inspection) -> str:
    visibility = found.config.visibility
    n_sliding = sum(visibility.sliding_layers)
    window = f"window {visibility.window} in {n_sliding} layers" if n_sliding else "no window"
    if visibility.sliding_causal:
        return f"{window}, causal in those and not in the others"
    return f"{window}, {'causal' if visibility.causal else 'not causal'}"


def _print_fit(fit: Fit) -> None:
    for warning in fit.warnings:
        print(f"warning: {warning}")
    if not fit.mismatches:
        print(f"fits {fit.target}")
        return
    print(f"does not fit {fit.target}:")
    for mismatch in fit.mismatches:
        print(f"  {mismatch}")


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"
