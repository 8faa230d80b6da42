"""Which keys the rows of a block see in each layer: window and causality, from config.json."""

from dataclasses import dataclass

from .errors import mismatch
from .families import Layout
from .fields import ConfigFields

_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS


@dataclass(frozen=True)
class Visibility:
    """Window and causality of every layer.

    Attributes:
        window: Keys a query of a sliding layer sees, its own included; None without any.
        sliding_layers: Per layer, whether it is a sliding one.
        causal: Whether block rows of every layer see only rows up to their own.
        sliding_causal: Whether those of the sliding layers do, and those of the full ones do not.
    """

    window: int | None
    sliding_layers: tuple[bool, ...]
    causal: bool
    sliding_causal: bool


def parse_visibility(fields: ConfigFields, layout: Layout, block_size: int) -> Visibility:
    """Resolves what config.json leaves open, as the engines do that serve these drafters.

    An explicit ``is_causal`` or ``causal`` holds for every layer. Without one, sliding layers are
    causal and full ones are not, except where the layout's own rule says otherwise.

    Raises:
        ConversionError: The settings contradict each other, or a window is missing or too small.
    """
    use_swa = fields.optional_bool("use_swa") is True
    sliding, named = _sliding_layers(fields, use_swa)
    window = _window(fields, sliding, block_size)
    explicit = fields.optional_bool("is_causal")
    nested = fields.optional_bool("causal")
    if explicit is None:
        explicit = nested
    if layout is Layout.SPECULATORS:
        causal_when_sliding = fields.optional_bool("sliding_window_non_causal") is not True
    else:
        # use_swa alone (MiMo) and Meta's assistant mean a window that looks both ways.
        causal_when_sliding = named and layout is not Layout.ASSISTANT
    if explicit is not None:
        return Visibility(window, sliding, explicit, False)
    causal = causal_when_sliding and all(sliding)
    return Visibility(window, sliding, causal, causal_when_sliding and any(sliding) and not causal)


def _sliding_layers(fields: ConfigFields, use_swa: bool) -> tuple[tuple[bool, ...], bool]:
    """Per layer whether it slides, and whether ``layer_types`` says so."""
    n_layers = fields.integer("num_hidden_layers")
    if n_layers > _MAX_LAYERS:
        where, _ = fields.find("num_hidden_layers")
        raise mismatch(n_layers, at=where, needed=f"at most {_MAX_LAYERS}, as llama.cpp allows")
    use_window = fields.optional_bool("use_sliding_window")
    layer_types = fields.strings("layer_types")
    where = "config.json: layer_types"
    if layer_types and len(layer_types) != n_layers:
        raise mismatch(list(layer_types), at=where, needed=f"{n_layers} entries, one per layer")
    if unknown := set(layer_types) - {"sliding_attention", "full_attention"}:
        raise mismatch(sorted(unknown), at=where, needed="sliding_attention or full_attention")
    sliding = tuple(name == "sliding_attention" for name in layer_types)
    if any(sliding):
        if use_window is False:
            needed = "true, as layer_types has sliding_attention"
            raise mismatch(use_window, at="config.json: use_sliding_window", needed=needed)
        return sliding, True
    if use_swa:
        return (True,) * n_layers, False
    if not layer_types and use_window:
        # Engines disagree on which layers slide then, so a guess would be wrong in one of them.
        raise mismatch(None, at=where, needed="a type per layer, as use_sliding_window is true")
    return (False,) * n_layers, False


def _window(fields: ConfigFields, sliding: tuple[bool, ...], block_size: int) -> int | None:
    window, key = fields.optional_integer("sliding_window"), "sliding_window"
    if (swa_window := fields.optional_integer("swa_window_size")) is not None:
        window, key = swa_window, "swa_window_size"
    if not any(sliding):
        return None
    where, _ = fields.find(key)
    if window is None:
        raise mismatch(None, at=where, needed="a window, as there are sliding layers")
    if window < block_size:
        # The window's forward side may never bind: stock llama.cpp does not draw it.
        raise mismatch(window, at=where, needed=f"at least block_size {block_size}")
    return window
