"""Public types to and from those of the native module."""

from __future__ import annotations

import functools
import json
import logging
import secrets
from typing import cast

from dflash2 import _core
from dflash2.paths import PROGRAMS
from dflash2.sampling import SCALAR_FIELDS, SamplingParams
from dflash2.types import (
    Cycle,
    FinishReason,
    GenerationChunk,
    GenerationResult,
    GenerationStats,
    TokenLogprobs,
)

_logger = logging.getLogger("dflash2")


def sampling_options(params: SamplingParams) -> _core.SamplingOptions:
    """Return the native form of `params`; without a seed every call draws another one."""
    options = _core.SamplingOptions()
    for name in SCALAR_FIELDS:
        setattr(options, name, getattr(params, name))
    options.dry_sequence_breakers = list(params.dry_sequence_breakers)
    options.seed = secrets.randbits(31) if params.seed is None else params.seed
    options.stop = list(params.stop)
    options.stop_token_ids = list(params.stop_token_ids)
    options.logprobs = -1 if params.logprobs is None else params.logprobs
    options.logit_bias = list((params.logit_bias or {}).items())
    options.grammar = params.grammar or ""
    if params.json_schema is not None:
        schema = params.json_schema
        options.json_schema = schema if isinstance(schema, str) else json.dumps(dict(schema))
    return options


def generation_stats(stats: _core.Stats) -> GenerationStats:
    """Return the public form of native statistics."""
    return GenerationStats(
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        generated_tokens=stats.generated_tokens,
        verify_steps=stats.verify_steps,
        draft_tokens=stats.draft_tokens,
        accepted_tokens=stats.accepted_tokens,
        accepted_per_position=tuple(stats.accepted_per_position),
        depth_histogram=tuple(stats.depth_histogram),
        verify_rule=stats.verify_rule,
        cost_model={
            name: dict(curve)
            for name, curve in (("verify_ms", stats.verify_ms), ("draft_ms", stats.draft_ms))
            if curve
        },
        fused_ops=stats.fused_ops,
        prompt_seconds=stats.prompt_seconds,
        draft_seconds=stats.draft_seconds,
        inject_seconds=stats.inject_seconds,
        verify_seconds=stats.verify_seconds,
        sample_seconds=stats.sample_seconds,
        generation_seconds=stats.generation_seconds,
    )


def generation_chunk(chunk: _core.Chunk, params: SamplingParams) -> GenerationChunk:
    """Return the public form of what one step gave a request sampled with `params`."""
    return GenerationChunk(
        text=chunk.text,
        token_ids=list(chunk.token_ids),
        n_accepted=chunk.n_accepted,
        finish_reason=cast("FinishReason", chunk.finish_reason) or None,
        stats=None if chunk.stats is None else generation_stats(chunk.stats),
        logprobs=(
            None
            if params.logprobs is None
            else [_token_logprobs(entry) for entry in chunk.logprobs]
        ),
        cycle=None if chunk.cycle is None else _cycle(chunk.cycle),
    )


def generation_result(chunks: list[GenerationChunk], params: SamplingParams) -> GenerationResult:
    """Join all chunks of a finished request."""
    last = chunks[-1]
    assert last.finish_reason is not None
    assert last.stats is not None
    return GenerationResult(
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token for chunk in chunks for token in chunk.token_ids],
        finish_reason=last.finish_reason,
        logprobs=(
            None
            if params.logprobs is None
            else [entry for chunk in chunks for entry in chunk.logprobs or ()]
        ),
        stats=last.stats,
        trace=[chunk.cycle for chunk in chunks if chunk.cycle] if params.trace else None,
    )


@functools.cache
def load_backends() -> None:
    """Load the backends that were built as plugins of this package."""
    _core.load_backends(str(PROGRAMS))


def forward_log() -> None:
    """Hand the lines that llama.cpp and the engine have logged to `logging`."""
    for level, line in _core.drain_log():
        _logger.log(level, "%s", line)


def discard_log() -> None:
    """Drop what has been logged and not yet forwarded."""
    _core.drain_log()


def show_log() -> None:
    """Make lines of level INFO visible, on stderr where the application set up no logging."""
    _logger.setLevel(logging.INFO)
    if not _logger.hasHandlers():
        _logger.addHandler(logging.StreamHandler())


def _cycle(cycle: _core.Cycle) -> Cycle:
    return Cycle(cycle.position, cycle.depth, tuple(cycle.draft), cycle.n_accepted, cycle.token)


def _token_logprobs(entry: _core.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(entry.token, entry.logprob, tuple(entry.top))
