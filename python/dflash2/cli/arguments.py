"""Flags shared by the commands, under llama.cpp's names."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dflash2 import Dflash2Engine, SamplingParams, demo
from dflash2.options import DraftHead, FlashAttention, FusedOps, VerifyRule

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

# flags, parameter of the engine or field of SamplingParams, type, metavar, help
_Flag = tuple[tuple[str, ...], str, Callable[[str], object], str, str]


def file_text(name: str) -> str:
    """Return the text of a file, as an argparse type."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read {name}: {error}"
        raise argparse.ArgumentTypeError(msg) from error


def _gpu_layers(text: str) -> int:
    return -1 if text in ("all", "auto") else int(text)


def _depth(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _seed(text: str) -> int | None:
    seed = int(text)
    return None if seed == -1 else seed


def _bias(text: str) -> tuple[int, float]:
    token, sign, bias = text.partition("-" if "-" in text else "+")
    if not sign:
        raise ValueError(text)
    return int(token), float(sign + bias)


_ENGINE: tuple[_Flag, ...] = (
    (("-c", "--ctx-size"), "n_ctx", int, "N", "tokens a sequence may hold, 0 is the target's own"),
    (("-b", "--batch-size"), "n_batch", int, "N", "prompt tokens per decode"),
    (("-t", "--threads"), "n_threads", int, "N", "CPU threads (default: one per physical core)"),
    (
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "n_gpu_layers",
        _gpu_layers,
        "N",
        "layers on the GPU, -1 is all",
    ),
    (("-np", "--parallel"), "n_parallel", int, "N", "sequences decoded together"),
    (
        ("-dev", "--device"),
        "device",
        str,
        "NAMES",
        "auto, cpu, or names from 'dflash2 doctor' with commas",
    ),
    (
        ("-fa", "--flash-attn"),
        "flash_attn",
        str,
        "|".join(get_args(FlashAttention)),
        "fused attention",
    ),
    (("--depth",), "depth", _depth, "N", "drafted tokens per cycle"),
    (("--p-min",), "p_min", float, "P", "end drafts before a slot less probable than this"),
    (("--verify",), "verify", str, "|".join(get_args(VerifyRule)), "how drafts are decided"),
    (
        ("--fused-ops",),
        "fused_ops",
        str,
        "|".join(get_args(FusedOps)),
        "how the drafter's graph is built",
    ),
    (
        ("--draft-head",),
        "draft_head",
        str,
        "|".join(get_args(DraftHead)),
        "LM head that drafts are made with",
    ),
    (("--cache-type",), "cache_type", str, "TYPE", "type of the target's K and V caches"),
    (("--rpc",), "rpc", str, "SERVERS", "host:port of RPC servers, with commas"),
)
_SAMPLERS: tuple[_Flag, ...] = (
    (("-n", "--predict", "--n-predict"), "max_tokens", int, "N", "tokens generated at most"),
    (("--temp", "--temperature"), "temperature", float, "T", "temperature, 0 is greedy"),
    (("--top-k",), "top_k", int, "N", "keep the N likeliest tokens, 0 is off"),
    (("--top-p",), "top_p", float, "P", "keep the likeliest tokens up to this sum, 1 is off"),
    (("--min-p",), "min_p", float, "P", "drop tokens under this share of the likeliest, 0 is off"),
    (("--typical-p", "--typical"), "typical_p", float, "P", "locally typical sampling, 1 is off"),
    (("--top-n-sigma", "--top-nsigma"), "top_n_sigma", float, "N", "sigmas kept, negative is off"),
    (("--xtc-probability",), "xtc_probability", float, "P", "chance of XTC, 0 is off"),
    (("--xtc-threshold",), "xtc_threshold", float, "P", "least probability of an XTC top choice"),
    (("--dynatemp-range",), "dynatemp_range", float, "R", "dynamic temperature range, 0 is off"),
    (("--dynatemp-exp",), "dynatemp_exponent", float, "E", "dynamic temperature exponent"),
    (("--repeat-penalty",), "repetition_penalty", float, "R", "divides known tokens, 1 is off"),
    (("--presence-penalty",), "presence_penalty", float, "A", "subtracted once, 0 is off"),
    (("--frequency-penalty",), "frequency_penalty", float, "A", "subtracted each time, 0 is off"),
    (("--repeat-last-n",), "penalty_last_n", int, "N", "tokens penalties see, -1 is all"),
    (("--dry-multiplier",), "dry_multiplier", float, "M", "strength of DRY, 0 is off"),
    (("--dry-base",), "dry_base", float, "B", "base of DRY"),
    (("--dry-allowed-length",), "dry_allowed_length", int, "N", "repetition DRY leaves alone"),
    (("--dry-penalty-last-n",), "dry_penalty_last_n", int, "N", "tokens DRY sees, -1 is all"),
    (("--mirostat",), "mirostat", int, "N", "version of mirostat, 0 is off"),
    (("--mirostat-ent",), "mirostat_tau", float, "N", "target entropy of mirostat"),
    (("--mirostat-lr",), "mirostat_eta", float, "N", "learning rate of mirostat"),
    (("-s", "--seed"), "seed", _seed, "N", "-1 draws a new one, as without this flag"),
    (("--logprobs",), "logprobs", int, "N", "alternatives reported per token with --json"),
)
_CONSTRAINTS: tuple[_Flag, ...] = (
    (("--grammar",), "grammar", str, "GBNF", "grammar the answer must follow"),
    (("--grammar-file",), "grammar", file_text, "FILE", "the same from a file"),
    (("-j", "--json-schema"), "json_schema", str, "JSON", "JSON schema the answer must follow"),
    (("-jf", "--json-schema-file"), "json_schema", file_text, "FILE", "the same from a file"),
)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which models are opened and how."""
    group = parser.add_argument_group("models")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="FILE", help="GGUF file of the target")
    source.add_argument("--demo", action="store_true", help="open the demo pair")
    group.add_argument(
        *("-md", "--model-draft", "--spec-draft-model"),
        dest="draft",
        metavar="MODEL",
        help="the drafter: a GGUF file, a checkpoint's folder, or a hub id",
    )
    engine = parser.add_argument_group("engine")
    _add_flags(engine, _ENGINE, _engine_defaults())
    engine.add_argument(
        *("-v", "--verbose"), action="store_true", help="show the engine's log on stderr"
    )


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of SamplingParams."""
    group = parser.add_argument_group("sampling")
    defaults = _sampling_defaults()
    _add_flags(group, _SAMPLERS, defaults)

    def add(*flags: str, **settings: Any) -> None:
        group.add_argument(*flags, default=argparse.SUPPRESS, **settings)

    add(
        "-r",
        "--reverse-prompt",
        "--stop",
        action="append",
        metavar="TEXT",
        dest="stop",
        help="end before TEXT, repeatable",
    )
    add(
        "--dry-sequence-breaker",
        action="append",
        metavar="TEXT",
        dest="dry_sequence_breakers",
        help="end of DRY's search, repeatable",
    )
    add(
        "-l",
        "--logit-bias",
        action="append",
        type=_bias,
        metavar="ID(+/-)BIAS",
        help="add BIAS to a token's logit, repeatable",
    )
    add("--ignore-eos", action="store_true", help="go on after an end token")
    group.add_argument(
        "--trace", action="store_true", help="show which drafted tokens were accepted"
    )
    _add_flags(group.add_mutually_exclusive_group(), _CONSTRAINTS, defaults)


def open_engine(args: argparse.Namespace) -> Dflash2Engine:
    """Return the engine that the flags ask for."""
    options: Any = {name: vars(args)[name] for name in vars(args).keys() & _engine_defaults()}
    target = demo.target_path() if args.demo else args.model
    draft = args.draft or (demo.drafter_path() if args.demo else None)
    return Dflash2Engine(target, draft, **options)


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """Return the sampling settings that the flags ask for."""
    values = {name: vars(args)[name] for name in vars(args).keys() & _sampling_defaults()}
    if "logit_bias" in values:
        values["logit_bias"] = dict(values["logit_bias"])
    return SamplingParams(**values)


def _engine_defaults() -> dict[str, object]:
    parameters = inspect.signature(Dflash2Engine).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _sampling_defaults() -> dict[str, object]:
    return {field.name: field.default for field in fields(SamplingParams)}


def _add_flags(
    group: argparse._ActionsContainer, table: tuple[_Flag, ...], defaults: Mapping[str, object]
) -> None:
    for flags, name, type_, metavar, text in table:
        default = "" if defaults[name] is None else f" (default: {defaults[name]})"
        group.add_argument(
            *flags,
            dest=name,
            type=type_,
            metavar=metavar,
            help=text + default,
            default=argparse.SUPPRESS,
        )
