"""`dflash2 generate`: completes prompts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING

from dflash2 import Dflash2Engine, GenerationChunk, GenerationResult, SamplingParams
from dflash2.cli.arguments import (
    add_engine_arguments,
    add_sampling_arguments,
    file_text,
    open_engine,
    sampling_params,
)
from dflash2.cli.output import print_answer, print_json, print_stats, result_dict
from dflash2.models import has_chat_template

if TYPE_CHECKING:
    from dflash2.cli.arguments import Subparsers

# more sequences than this decoded together need an explicit --parallel: each of them takes the
# memory of a whole context
_MOST_PARALLEL = 8


def add_parser(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "generate",
        help="complete prompts",
        description=(
            "Complete prompts. Where the target has a chat template a prompt is a user's message, "
            "unless --raw is given."
        ),
        allow_abbrev=False,
    )
    prompts = parser.add_argument_group(
        "prompts", f"Several are decoded together, up to {_MOST_PARALLEL} without --parallel."
    )
    for flags, type_, metavar in (
        (("-p", "--prompt"), str, "TEXT"),
        (("-f", "--file"), _prompt_file, "FILE"),
    ):
        prompts.add_argument(
            *flags,
            dest="prompts",
            action="append",
            type=type_,
            metavar=metavar,
            help="a prompt; may be repeated (default: the standard input)",
        )
    prompts.add_argument(
        "--raw", action="store_true", help="complete prompts as they are, without chat template"
    )
    add_engine_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    parser.set_defaults(run=run, error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Complete the prompts and print what came out."""
    if args.prompts is None and sys.stdin.isatty():
        args.error("no prompt: give -p TEXT, -f FILE, or text on the standard input")
    prompts = args.prompts or [sys.stdin.read()]
    if args.trace and not args.json and len(prompts) > 1:
        args.error("--trace marks the text of one prompt: add --json for several")
    params = sampling_params(args)
    if "n_parallel" not in args:
        args.n_parallel = min(len(prompts), _MOST_PARALLEL)
    with open_engine(args) as engine:
        raw = args.raw or not has_chat_template(engine.model_path)
        if args.json:
            documents = [result_dict(result) for result in _answers(engine, prompts, params, raw)]
            print_json(documents if len(documents) > 1 else documents[0])
            return 0
        if len(prompts) > 1:
            for result in _answers(engine, prompts, params, raw):
                print(result.text, end="\n\n", flush=True)
        else:
            with closing(_stream(engine, prompts[0], params, raw)) as chunks:
                print_answer(chunks, engine.detokenize if params.trace else None)
        print()
        print_stats(engine.stats)
    return 0


def _answers(
    engine: Dflash2Engine, prompts: list[str], params: SamplingParams, raw: bool
) -> list[GenerationResult]:
    if raw:
        return engine.generate(prompts, params)
    return engine.chat([_message(prompt) for prompt in prompts], params)


def _stream(
    engine: Dflash2Engine, prompt: str, params: SamplingParams, raw: bool
) -> Generator[GenerationChunk, None, None]:
    if raw:
        return engine.stream(prompt, params)
    return engine.stream_chat(_message(prompt), params)


def _message(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _prompt_file(name: str) -> str:
    # editors end a file with a newline that is no part of the prompt; llama.cpp drops it too
    return file_text(name).removesuffix("\n")
