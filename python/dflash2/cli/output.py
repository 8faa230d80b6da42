"""What the commands print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from dflash2 import GenerationChunk, GenerationResult, GenerationStats


class _Marks(NamedTuple):
    accepted: str
    rejected: str
    end: str


_COLOURS = _Marks("\033[32m", "\033[31;9m", "\033[0m")  # green; red and struck through
_DIM = "\033[2m"


def print_answer(
    chunks: Iterable[GenerationChunk], detokenize: Callable[[list[int]], str] | None
) -> GenerationStats | None:
    """Print an answer as it comes and return its statistics; None when it did not end.

    Args:
        chunks: The answer.
        detokenize: Set to mark accepted and rejected drafts, which the chunks must report.
    """
    stats = None
    try:
        for chunk in chunks:
            print(_marked(chunk, detokenize) if detokenize else chunk.text, end="", flush=True)
            stats = chunk.stats
    finally:
        print(flush=True)
    return stats


def print_stats(stats: GenerationStats) -> None:
    """Print speeds and, with a drafter, how many drafts were made and accepted."""
    print(f"prompt: {stats.prompt_tokens} tokens, {stats.prompt_tps:.1f} tokens/s")
    print(f"generated: {stats.generated_tokens} tokens, {stats.generation_tps:.1f} tokens/s")
    if stats.verify_rule == "none" or not stats.verify_steps:
        return
    depths = ", ".join(
        f"{depth} in {count}" for depth, count in enumerate(stats.depth_histogram) if count
    )
    print(f"drafted tokens per target pass: {depths}")
    if not stats.draft_tokens:
        print("no drafts: they would cost more time than they save here; --depth N makes them")
        return
    print(f"mean acceptance length: {stats.mean_acceptance_length:.2f} tokens per target pass")
    print(
        f"acceptance: {stats.acceptance_rate:.1%} "
        f"({stats.accepted_tokens} of {stats.draft_tokens} drafted)"
    )
    shares = " ".join(f"{share:.1%}" for share in stats.acceptance_per_position)
    print(f"acceptance per position: {shares}")


def print_aside(text: str) -> None:
    """Print a remark that is no part of an answer."""
    print(f"{_DIM}{text}{_COLOURS.end}" if _has_colours() else text, flush=True)


def print_error(error: BaseException) -> None:
    """Print an error on one line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    print(f"dflash2: error: {reason}", file=sys.stderr)


def print_json(value: object) -> None:
    """Print `value` as one JSON document."""
    print(json.dumps(value, ensure_ascii=False, indent=2), flush=True)


def result_dict(result: GenerationResult) -> dict[str, Any]:
    """Return a result for JSON, with log-probabilities and trace where they were asked for."""
    values = asdict(result) | {"stats": result.stats.as_dict()}
    return {
        name: value
        for name, value in values.items()
        if value is not None or name not in ("logprobs", "trace")
    }


def _marked(chunk: GenerationChunk, detokenize: Callable[[list[int]], str]) -> str:
    if chunk.cycle is None:
        return chunk.text
    accepted = chunk.token_ids[: chunk.n_accepted]
    rejected = chunk.cycle.draft[chunk.cycle.n_accepted :]
    rest = chunk.token_ids[chunk.n_accepted :]
    marks = _COLOURS if _has_colours() else _Marks("[+", "[-", "]")
    return "".join(
        f"{mark}{detokenize(list(tokens))}{marks.end}" if mark else detokenize(list(tokens))
        for mark, tokens in ((marks.accepted, accepted), (marks.rejected, rejected), ("", rest))
        if tokens
    )


def _has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
