"""What the engine gives back: text, tokens, log-probabilities, statistics, cycles."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class GenerationStats:
    """Counts and times of one request, or of an engine since its last reset.

    Times are seconds of wall clock. A request decoded together with others counts the whole time of
    the shared decodes; in an engine's totals that time counts once.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Of `prompt_tokens`, those found in the cache and not evaluated again.
        generated_tokens: Tokens of the answer.
        verify_steps: Target passes after the prompt, those without a draft included.
        draft_tokens: Drafted tokens given to the target to verify.
        accepted_tokens: Of `draft_tokens`, those accepted.
        accepted_per_position: `[i]` counts the cycles in which draft token i was accepted.
        depth_histogram: `[n]` counts the cycles that verified n draft tokens.
        verify_rule: The rule that decided about drafts, "match", "reject" or "block"; "none"
            without a drafter, "mixed" in the totals of requests under several rules.
        cost_model: What target passes ("verify_ms") and draft passes ("draft_ms") of how many rows
            cost on this machine, in ms, as the engine has measured; empty for a single request.
        fused_ops: How the drafter's ops ran, "fused", "composed" or "upstream"; "none" without a
            drafter.
        prompt_seconds: Evaluating the prompt.
        draft_seconds: Drafting blocks.
        inject_seconds: Writing target features into the drafter's cache.
        verify_seconds: Target passes after the prompt.
        sample_seconds: Walking the lattices, deciding about drafts, sampling.
        generation_seconds: From the end of the prompt to the last token.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    depth_histogram: tuple[int, ...]
    verify_rule: str
    cost_model: dict[str, dict[int, float]]
    fused_ops: str
    prompt_seconds: float
    draft_seconds: float
    inject_seconds: float
    verify_seconds: float
    sample_seconds: float
    generation_seconds: float

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target pass: 1 + accepted / verify steps; 0 before the first pass."""
        return 1 + self.accepted_tokens / self.verify_steps if self.verify_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; the token that the target adds to every block does not count."""
        return _ratio(self.accepted_tokens, self.draft_tokens)

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """`[i]`: share of the cycles that verified draft token i in which it was accepted."""
        return tuple(
            _ratio(accepted, sum(self.depth_histogram[position + 1 :]))
            for position, accepted in enumerate(self.accepted_per_position)
        )

    @property
    def prompt_tps(self) -> float:
        """Prompt tokens evaluated per second, those found in the cache not counted."""
        return _ratio(self.prompt_tokens - self.cached_tokens, self.prompt_seconds)

    @property
    def generation_tps(self) -> float:
        """Generated tokens per second."""
        return _ratio(self.generated_tokens, self.generation_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return counts, times and the values derived from them, ready for JSON.

        JSON turns the rows of `cost_model` into strings.
        """
        derived = (
            "mean_acceptance_length",
            "acceptance_rate",
            "acceptance_per_position",
            "prompt_tps",
            "generation_tps",
        )
        values = asdict(self) | {name: getattr(self, name) for name in derived}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def __str__(self) -> str:
        """Return the most asked for values on one line."""
        return (
            f"{self.generated_tokens} tokens at {self.generation_tps:.1f} tokens/s, "
            f"prompt of {self.prompt_tokens} at {self.prompt_tps:.1f} tokens/s, "
            f"mean acceptance length {self.mean_acceptance_length:.2f}, "
            f"accepted {self.accepted_tokens} of {self.draft_tokens} drafted "
            f"({self.acceptance_rate:.1%})"
        )


@dataclass(frozen=True)
class Cycle:
    """One draft-verify cycle.

    Attributes:
        position: Position of the anchor in the sequence.
        depth: Draft tokens verified.
        draft: Their ids.
        n_accepted: How many of them were accepted, from the first on.
        token: What the target gave after the accepted ones: the next anchor.
    """

    position: int
    depth: int
    draft: tuple[int, ...]
    n_accepted: int
    token: int


@dataclass(frozen=True)
class TokenLogprobs:
    """The target's log-probabilities at one token, from its logits before any sampler.

    Attributes:
        token: The chosen token.
        logprob: Its log-probability.
        top: The likeliest tokens and their log-probabilities, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GenerationResult:
    """A finished answer.

    Attributes:
        text: The answer, without a stop string that ended it.
        token_ids: Its tokens.
        finish_reason: "stop" for an end token or stop string, "length" for `max_tokens` or a full
            context, "cancelled".
        logprobs: One entry per token; None unless asked for.
        stats: Counts and times of this request.
        trace: Its draft-verify cycles; None unless asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs] | None
    stats: GenerationStats
    trace: list[Cycle] | None


@dataclass(frozen=True)
class GenerationChunk:
    """What one verified block adds to an answer.

    Attributes:
        text: Whole characters only: bytes of an unfinished one come with a later chunk.
        token_ids: The tokens of the block.
        n_accepted: How many of them were drafted.
        finish_reason: As in `GenerationResult`, on the last chunk; None before.
        stats: Counts and times of the request, on the last chunk; None before.
        logprobs: One entry per token; None unless asked for.
        cycle: The draft-verify cycle; None unless asked for, and for the prompt's own token.
    """

    text: str
    token_ids: list[int]
    n_accepted: int
    finish_reason: FinishReason | None
    stats: GenerationStats | None
    logprobs: list[TokenLogprobs] | None = None
    cycle: Cycle | None = None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
