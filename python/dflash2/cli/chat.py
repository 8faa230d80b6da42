"""`dflash2 chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from dflash2 import (
    Dflash2Engine,
    Dflash2Error,
    GenerationChunk,
    GenerationResult,
    GenerationStats,
    SamplingParams,
)
from dflash2.cli.arguments import (
    add_engine_arguments,
    add_sampling_arguments,
    open_engine,
    sampling_params,
)
from dflash2.cli.output import (
    print_answer,
    print_aside,
    print_error,
    print_json,
    print_stats,
    result_dict,
)

if TYPE_CHECKING:
    from dflash2.cli.arguments import Subparsers


def add_parser(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "chat",
        help="talk with the target",
        description="Talk with the target through its chat template.",
        allow_abbrev=False,
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="ask this once and leave")
    parser.add_argument(
        *("-sys", "--system-prompt"), dest="system", metavar="TEXT", help="the system message"
    )
    parser.add_argument(
        "--chat-template-kwargs",
        type=_json_object,
        metavar="JSON",
        help="""further variables of the template, as in '{"enable_thinking": false}'""",
    )
    add_engine_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument("--json", action="store_true", help="with -p: print the result as JSON")
    parser.set_defaults(run=run, error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Answer once, or talk until the user leaves."""
    if args.json and args.prompt is None:
        args.error("--json prints one answer: add -p TEXT")
    params = sampling_params(args)
    with open_engine(args) as engine:
        conversation = _Conversation(engine, params, args.system, args.chat_template_kwargs)
        if args.json:
            print_json(result_dict(conversation.result(args.prompt)))
            return 0
        if args.prompt is None:
            _talk(conversation)
        else:
            conversation.answer(args.prompt)
        print()
        print_stats(engine.stats)
    return 0


class _Conversation:
    """A conversation so far, and how it goes on."""

    def __init__(
        self,
        engine: Dflash2Engine,
        params: SamplingParams,
        system: str | None,
        variables: dict[str, Any] | None,
    ) -> None:
        self._engine = engine
        self._params = params
        self._variables = variables
        self._opening = [] if system is None else [_message("system", system)]
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages = list(self._opening)

    def result(self, question: str) -> GenerationResult:
        """Return the answer to a question without printing it."""
        messages = [*self._messages, _message("user", question)]
        return self._engine.chat(messages, self._params, chat_template_kwargs=self._variables)

    def answer(self, question: str) -> GenerationStats | None:
        """Print the answer to a question; an interrupted one stays as far as it came."""
        messages = [*self._messages, _message("user", question)]
        parts: list[str] = []
        stream = self._engine.stream_chat(
            messages, self._params, chat_template_kwargs=self._variables
        )
        try:
            with closing(stream):
                return print_answer(
                    _kept(stream, parts), self._engine.detokenize if self._params.trace else None
                )
        finally:
            if parts:
                self._messages = [*messages, _message("assistant", "".join(parts))]


def _talk(conversation: _Conversation) -> None:
    with suppress(ImportError):  # line editing and history for input(), where there is a readline
        importlib.import_module("readline")
    print_aside("Ctrl-C stops an answer, /reset starts again, /exit or Ctrl-D leaves.")
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            continue
        if question == "/exit":
            return
        if question == "/reset":
            conversation.reset()
        elif question:
            _take_turn(conversation, question)


def _take_turn(conversation: _Conversation, question: str) -> None:
    try:
        stats = conversation.answer(question)
    except KeyboardInterrupt:
        return
    except (Dflash2Error, ValueError) as error:
        print_error(error)
        return
    if stats is not None:
        print_aside(
            f"{stats.generation_tps:.1f} tokens/s, "
            f"mean acceptance length {stats.mean_acceptance_length:.2f}"
        )


def _kept(chunks: Iterable[GenerationChunk], parts: list[str]) -> Iterator[GenerationChunk]:
    for chunk in chunks:
        parts.append(chunk.text)
        yield chunk


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value
