"""Checks of what a caller passes."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, NamedTuple, NoReturn

INT32_MAX = 2**31 - 1
_LARGEST = 1e30  # the native options hold 32-bit floats


class Range(NamedTuple):
    """An interval, closed unless `above_low`."""

    low: float = -_LARGEST
    high: float = _LARGEST
    above_low: bool = False

    def holds(self, value: Any) -> bool:
        """Whether `value`, any real number, lies inside; false for NaN."""
        above = self.low < value if self.above_low else self.low <= value
        return bool(above and value <= self.high)

    def __str__(self) -> str:
        """Return the rule in the form "must be ..."."""
        if self.low == -math.inf:
            return "below infinity"
        if self.low == -_LARGEST:
            return "finite"
        low = f"{'>' if self.above_low else '>='} {self.low:g}"
        if self.high == _LARGEST:
            return f"finite and {low}"
        return f"{low} and <= {self.high:.10g}"


COUNT = Range(0, INT32_MAX)
AT_LEAST_ONE = Range(1, INT32_MAX)


def refuse_type(name: str, expected: str, value: object) -> NoReturn:
    """Raise the error for a value of the wrong type."""
    msg = f"{name} must be {expected}, got {value!r} of type {type(value).__name__}"
    raise TypeError(msg)


def number(name: str, value: object, allowed: Range) -> float:
    """Return `value` as a float; TypeError unless a real number, ValueError outside `allowed`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        refuse_type(name, "a number", value)
    if not allowed.holds(value):
        msg = f"{name} must be {allowed}, got {value!r}"
        raise ValueError(msg)
    return float(value)


def integer(name: str, value: object, allowed: Range) -> int:
    """Return `value` as an int; TypeError unless an integer, ValueError outside `allowed`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        refuse_type(name, "an integer", value)
    if not allowed.holds(value):
        msg = f"{name} must be an integer {allowed}, got {value!r}"
        raise ValueError(msg)
    return int(value)


def unicode_text(name: str, value: object) -> str:
    """Return `value`; TypeError unless text, ValueError if it cannot be written as UTF-8."""
    if not isinstance(value, str):
        refuse_type(name, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        msg = f"{name} must be valid Unicode, got a lone surrogate at character {error.start}"
        raise ValueError(msg) from error
    return value


def choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return `value`; ValueError unless it is one of `allowed`."""
    if value not in allowed:
        msg = f"{name} must be one of {', '.join(allowed)}, got {value!r}"
        raise ValueError(msg)
    return str(value)
