"""Typed look-up of config.json keys that remembers which keys were read."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from .checkpoint import Json
from .errors import mismatch

# What GGUF's i32 and f32 can hold.
_LARGEST_INTEGER = 2**31 - 1
_SMALLEST_NUMBER, _LARGEST_NUMBER = 1.2e-38, 3.4e38

# Objects whose keys are settings of the drafter, and the order in which a key is looked for.
_SECTIONS = ("dflash_config", None, "transformer_layer_config")
_NO_DEFAULTS: Mapping[str, object] = MappingProxyType({})


class ConfigFields:
    """The keys of a drafter's config.json, wherever its layout puts them.

    ``dflash_config`` wins over the top level, which wins over ``transformer_layer_config`` (of
    speculators exports). A key whose value is null counts as absent. Every getter raises
    `ConversionError` for a value of the wrong type or range.
    """

    def __init__(self, config: Json, defaults: Mapping[str, object] = _NO_DEFAULTS) -> None:
        """Takes the parsed config.json.

        Args:
            config: The object in it.
            defaults: What its writer leaves out when it is so.

        Raises:
            ConversionError: ``dflash_config`` or ``transformer_layer_config`` is no object.
        """
        self._defaults = defaults
        self._sections: list[tuple[str, Mapping[str, object]]] = []
        for name in _SECTIONS:
            values = config if name is None else config.get(name) or {}
            if not isinstance(values, dict):
                raise mismatch(values, at=f"config.json: {name}", needed="an object")
            self._sections.append(("" if name is None else f"{name}.", values))
        self._read = {name for name in _SECTIONS if name is not None}

    def find(self, key: str) -> tuple[str, object]:
        """Returns where a key was found (for messages) and its value, None if absent."""
        self._read.add(key)
        for prefix, values in self._sections:
            if values.get(key) is not None:
                return f"config.json: {prefix}{key}", values[key]
        return f"config.json: {key}", self._defaults.get(key)

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

    def integers(self, key: str, minimum: int = 0) -> tuple[int, ...]:
        """Returns a list of at least one integer, none below the minimum."""
        where, value = self.find(key)
        if not isinstance(value, list) or not value:
            raise mismatch(value, at=where, needed="a list of integers")
        return tuple(check_integer(f"{where}[{i}]", item, minimum) for i, item in enumerate(value))

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
            f"{prefix}{key}"
            for prefix, values in self._sections
            for key, value in values.items()
            if value is not None and key not in known
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
