"""The one exception of the converter."""

# Characters of a value that are shown.
_LONGEST = 200


class ConversionError(ValueError):
    """A checkpoint, a target, or the pair of them cannot be converted.

    The message names the file and the key or tensor, what was found and what is needed.
    """


def mismatch(found: object, *, at: str, needed: str) -> ConversionError:
    """Builds the error for a value that differs from what is needed.

    Args:
        found: The value, None for a missing one.
        at: The file and the key or tensor, for example ``config.json: hidden_size``.
        needed: What would have been right, and why where that is not plain.
    """
    state = "missing" if found is None else repr(found)
    if len(state) > _LONGEST:  # a vocabulary, for example
        state = f"{state[:_LONGEST]}..."
    return ConversionError(f"{at} is {state}, needed: {needed}")
