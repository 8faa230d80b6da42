"""How one request is sampled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash2.checks import AT_LEAST_ONE, COUNT, INT32_MAX, Range, integer, number, refuse_type

# 2**32 - 1 asks llama.cpp's samplers for a seed of their own choice
_SEED_MAX = 2**32 - 2


_PROBABILITY = Range(0, 1)
_SHARE = Range(0, 1, above_low=True)
_NOT_NEGATIVE = Range(0)
_BIAS = Range(-math.inf)
_LOOK_BACK = Range(-1, INT32_MAX)

_FLOATS = {
    "temperature": _NOT_NEGATIVE,
    "top_p": _SHARE,
    "min_p": _PROBABILITY,
    "typical_p": _SHARE,
    "top_n_sigma": Range(),
    "xtc_probability": _PROBABILITY,
    "xtc_threshold": _PROBABILITY,
    "dynatemp_range": _NOT_NEGATIVE,
    "dynatemp_exponent": _NOT_NEGATIVE,
    "repetition_penalty": Range(0, above_low=True),
    "presence_penalty": Range(),
    "frequency_penalty": Range(),
    "dry_multiplier": _NOT_NEGATIVE,
    "dry_base": Range(1),
    "mirostat_tau": _NOT_NEGATIVE,
    "mirostat_eta": _NOT_NEGATIVE,
}
_INTEGERS = {
    "max_tokens": AT_LEAST_ONE,
    "top_k": COUNT,
    "penalty_last_n": _LOOK_BACK,
    "dry_allowed_length": COUNT,
    "dry_penalty_last_n": _LOOK_BACK,
    "mirostat": Range(0, 2),
}
_FLAGS = ("ignore_eos", "trace")
_OPTIONAL_INTEGERS = {"seed": Range(0, _SEED_MAX), "logprobs": COUNT}

# fields that the native options hold under the same name and in the same form
SCALAR_FIELDS = (*_FLOATS, *_INTEGERS, *_FLAGS)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling settings of a request; greedy over the whole vocabulary unless told otherwise.

    Names are vLLM's, and llama.cpp's where vLLM has none. Values are checked when the object is
    made.

    Attributes:
        max_tokens: Tokens generated at most, at least 1.
        temperature: 0 is greedy.
        top_k: Keep the k likeliest tokens; 0 is off.
        top_p: Keep the likeliest tokens whose probabilities reach this sum; 1 is off.
        min_p: Drop tokens less likely than this share of the likeliest; 0 is off.
        typical_p: Locally typical sampling; 1 is off.
        top_n_sigma: Keep logits within n standard deviations of the largest; negative is off.
        xtc_probability: Chance that a step excludes top choices; 0 is off.
        xtc_threshold: Least probability of a top choice for XTC.
        dynatemp_range: Half width of the dynamic temperature; 0 is off.
        dynatemp_exponent: How entropy maps to the dynamic temperature.
        repetition_penalty: Divides the logits of tokens already there; 1 is off.
        presence_penalty: Subtracted once from the logits of tokens already there.
        frequency_penalty: Subtracted once per occurrence.
        penalty_last_n: Tokens the three penalties look back on, prompt included; -1 is all of the
            context.
        dry_multiplier: Strength of the DRY repetition penalty; 0 is off.
        dry_base: Base of DRY's growth with the length of the repetition.
        dry_allowed_length: Longest repetition that DRY leaves alone.
        dry_penalty_last_n: Tokens DRY looks back on; -1 is all of the context.
        dry_sequence_breakers: Strings at which DRY stops looking for a repetition.
        mirostat: 0 is off, else version 1 or 2.
        mirostat_tau: Target entropy of mirostat.
        mirostat_eta: Learning rate of mirostat.
        seed: The same seed gives the same tokens; None draws a new one for every request.
        stop: One string or several; the answer ends before the first that appears.
        stop_token_ids: The answer ends with the first of these tokens.
        ignore_eos: Go on after an end-of-generation token.
        logprobs: Alternatives to report per token, 0 for the chosen token alone; None reports
            nothing.
        logit_bias: Token id to a number added to its logit; minus infinity bans the token.
        grammar: GBNF grammar the answer must follow.
        json_schema: JSON schema the answer must follow, as a dict or as text; excludes `grammar`.
        trace: Report every draft-verify cycle.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    grammar: str | None = None
    json_schema: Mapping[str, Any] | str | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        """Check every value; sequences become tuples, numbers plain int and float."""
        for name, allowed in _FLOATS.items():
            self._set(name, number(name, getattr(self, name), allowed))
        for name, allowed in _INTEGERS.items():
            self._set(name, integer(name, getattr(self, name), allowed))
        for name, allowed in _OPTIONAL_INTEGERS.items():
            if getattr(self, name) is not None:
                self._set(name, integer(name, getattr(self, name), allowed))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                refuse_type(name, "True or False", getattr(self, name))
        self._set("stop", _strings("stop", self.stop))
        self._set(
            "dry_sequence_breakers", _strings("dry_sequence_breakers", self.dry_sequence_breakers)
        )
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.logit_bias is not None:
            self._set("logit_bias", _biases(self.logit_bias))
        if self.grammar is not None and not isinstance(self.grammar, str):
            refuse_type("grammar", "GBNF text or None", self.grammar)
        _check_json_schema(self.json_schema)
        if self.grammar is not None and self.json_schema is not None:
            msg = "grammar and json_schema exclude each other, got both: leave one of them out"
            raise ValueError(msg)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _strings(name: str, value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Iterable):
        refuse_type(name, "a string or a sequence of strings", value)
    strings = tuple(strings)
    for string in strings:
        if not isinstance(string, str):
            refuse_type(name, "a string or a sequence of strings", string)
        if not string:
            msg = f"{name} must hold no empty string, got {value!r}"
            raise ValueError(msg)
    return strings


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        refuse_type(name, "a sequence of token ids", value)
    return tuple(integer(name, token, COUNT) for token in value)


def _biases(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        refuse_type("logit_bias", "a mapping of token id to number", value)
    return {
        integer("a token id of logit_bias", token, COUNT): number(
            f"logit_bias[{token}]", bias, _BIAS
        )
        for token, bias in value.items()
    }


def _check_json_schema(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, (str, Mapping)):
        refuse_type("json_schema", "a mapping, JSON text or None", value)
    try:
        json.loads(value) if isinstance(value, str) else json.dumps(dict(value))
    except (TypeError, ValueError) as error:
        msg = f"json_schema must be a JSON schema, got {value!r}: {error}"
        raise ValueError(msg) from error
