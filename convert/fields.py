"""Typed look-up of config.json keys that remembers which keys were read."""

from collections.abc import Iterable

from .checkpoint import Json
from .errors import mismatch

# What GGUF's i32 and f32 can hold.
_LARGEST_INTEGER = 2**31 - 1
_SMALLEST_NUMBER, _LARGEST_NUMBER = 1.2e-38, 3.4e38


class ConfigFields:
    """The keys of a drafter's config.json: ``dflash_config`` first, then the top level.

    A key whose value is null counts as absent. Every getter raises `ConversionError` for a value
    of the wrong type or range.
    """

    def __init__(self, config: Json) -> None:
        """Takes the parsed config.json.

        Raises:
            ConversionError: ``dflash_config`` is there but no object.
        """
        nested = config.get("dflash_config") or {}
        if not isinstance(nested, dict):
            raise mismatch(nested, at="config.json: dflash_config", needed="an object")
        self._values: dict[tuple[str, ...], object] = {
            **{(key,): value for key, value in config.items() if key != "dflash_config"},
            **{("dflash_config", key): value for key, value in nested.items()},
        }
        self._read: set[str] = set()

    def find(self, key: str) -> tuple[str, object]:
        """Returns where a key was found (for messages) and its value, None if absent."""
        self._read.add(key)
        for path in (("dflash_config", key), (key,)):
            if self._values.get(path) is not None:
                return f"config.json: {'.'.join(path)}", self._values[path]
        return f"config.json: {key}", None

    def integer(self, key: str, minimum: int = 1) -> int:
        """Returns an integer that must be there."""
        where, value = self.find(key)
        return check_integer(where, value, minimum)

    def optional_integer(self, key: str, minimum: int = 1) -> int | None:
        """Returns an integer, None if absent."""
        where, value = self.find(key)
        return None if value is None else check_integer(where, value, minimum)

    def positive(self, key: str) -> float:
        """Returns a number above 0 that must be there."""
        where, value = self.find(key)
        return check_positive(where, value)

    def optional_positive(self, key: str) -> float | None:
        """Returns a number above 0, None if absent."""
        where, value = self.find(key)
        return None if value is None else check_positive(where, value)

    def optional_bool(self, key: str) -> bool | None:
        """Returns true or false, None if absent."""
        where, value = self.find(key)
        if value is not None and not isinstance(value, bool):
            raise mismatch(value, at=where, needed="true or false")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """Returns a list of strings, empty if absent."""
        where, value = self.find(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise mismatch(value, at=where, needed="a list of strings")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """Returns a list of at least one integer, none below 0."""
        where, value = self.find(key)
        if not isinstance(value, list) or not value:
            raise mismatch(value, at=where, needed="a list of integers")
        return tuple(check_integer(f"{where}[{i}]", item, 0) for i, item in enumerate(value))

    def table(self, key: str) -> dict[str, object]:
        """Returns an object, empty if absent."""
        where, value = self.find(key)
        if value is not None and not isinstance(value, dict):
            raise mismatch(value, at=where, needed="an object")
        return value or {}

    def unread(self, ignored: Iterable[str]) -> list[str]:
        """Lists the keys that are set, were never read and are not among the ignored ones."""
        known = self._read.union(ignored)
        return sorted(
            ".".join(path)
            for path, value in self._values.items()
            if value is not None and path[-1] not in known
        )


def check_integer(where: str, value: object, minimum: int) -> int:
    """Returns the value if it is an integer of at least the minimum."""
    if type(value) is not int or not minimum <= value <= _LARGEST_INTEGER:
        needed = f"an integer from {minimum} to {_LARGEST_INTEGER}"
        raise mismatch(value, at=where, needed=needed)
    return value


def check_positive(where: str, value: object) -> float:
    """Returns the value if it is a finite number above 0."""
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and _SMALLEST_NUMBER <= value <= _LARGEST_NUMBER
    ):
        return float(value)
    raise mismatch(value, at=where, needed="a number above 0")
