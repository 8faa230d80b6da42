"""RoPE of a drafter, from its own config.json."""

import logging
from dataclasses import dataclass

from .errors import mismatch
from .families import Layout
from .fields import ConfigFields, check_integer, check_positive

logger = logging.getLogger(__name__)

_TABLES = ("rope_scaling", "rope_parameters")
_LAYER_TYPES = ("full_attention", "sliding_attention")
# YaRN's numbers under the names of config.json and of GGUF.
_YARN_NUMBERS = {
    "extrapolation_factor": "yarn_ext_factor",
    "attention_factor": "yarn_attn_factor",
    "attn_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


@dataclass(frozen=True)
class RopeScaling:
    """Stretched RoPE.

    Attributes:
        type: ``yarn`` or ``linear``.
        factor: How many times longer the context became.
        original_context: Context length before the stretch, of ``yarn`` only.
        yarn: YaRN's other numbers that config.json states, by their GGUF key.
    """

    type: str
    factor: float
    original_context: int | None
    yarn: dict[str, float]


@dataclass(frozen=True)
class Rope:
    """How a drafter rotates its queries and keys.

    Attributes:
        theta: Base of the frequencies.
        n_dims: Dimensions of a head that are rotated, the first ones.
        interleaved: Whether neighbours form a pair in the checkpoint; else halves do (NeoX).
        scaling: None for plain RoPE.
    """

    theta: float
    n_dims: int
    interleaved: bool
    scaling: RopeScaling | None


def parse_rope(fields: ConfigFields, layout: Layout, head_dim: int) -> Rope:
    """Reads every RoPE setting.

    Raises:
        ConversionError: There is no theta, or a setting that the runtime does not draw.
    """
    table = _merged_table(fields)
    theta = check_positive(*table.pop("rope_theta", fields.find("rope_theta")))
    n_dims = _rotated_dims(fields, table, layout, head_dim)
    scaling = _scaling(fields, table)
    for where, value in table.values():
        if value is not None:
            raise mismatch(value, at=where, needed="absent: it is not known for this RoPE")
    neox = fields.optional_bool("rope_is_neox_style")
    return Rope(theta, n_dims, neox is False, scaling)


_Table = dict[str, tuple[str, object]]


def _merged_table(fields: ConfigFields) -> _Table:
    """Entries of ``rope_parameters`` and the older ``rope_scaling``, each with its place."""
    merged: _Table = {}
    for key in _TABLES:
        table, where = fields.table(key), f"config.json: {key}"
        per_layer_type = {name: table[name] for name in _LAYER_TYPES if name in table}
        if per_layer_type:
            tables = list(per_layer_type.values())
            if len(per_layer_type) != len(table) or any(other != tables[0] for other in tables):
                # All layers of a drafter share one RoPE in the runtime.
                raise mismatch(table, at=where, needed="the same RoPE for every layer type")
            where, shared = f"{where}.{next(iter(per_layer_type))}", tables[0]
            if not isinstance(shared, dict):
                raise mismatch(shared, at=where, needed="an object")
            table = shared
        for name, value in table.items():
            setting = "rope_type" if name == "type" else name
            _, other = merged.get(setting, (where, value))
            if other != value:
                raise mismatch(value, at=f"{where}.{name}", needed=f"{other!r} as in rope_scaling")
            merged[setting] = (f"{where}.{name}", value)
    return merged


def _rotated_dims(fields: ConfigFields, table: _Table, layout: Layout, head_dim: int) -> int:
    where, factor = table.pop("partial_rotary_factor", fields.find("partial_rotary_factor"))
    for name in ("mrope_section", "mrope_interleaved"):
        if name in table:
            _ignore_target_setting(table.pop(name)[0])
    if "rope_dim" in table:
        where, n_dims = table.pop("rope_dim")
        return _check_dims(where, check_integer(where, n_dims, minimum=2), head_dim)
    if factor is None:
        return head_dim
    if layout is not Layout.MIMO:
        _ignore_target_setting(where)
        return head_dim
    return _check_dims(where, int(head_dim * check_positive(where, factor)), head_dim)


def _check_dims(where: str, n_dims: int, head_dim: int) -> int:
    if n_dims % 2 or not 2 <= n_dims <= head_dim:
        needed = f"an even number of rotated dimensions up to head_dim {head_dim}"
        raise mismatch(n_dims, at=where, needed=needed)
    return n_dims


def _ignore_target_setting(where: str) -> None:
    # The reference rotates whole heads at plain positions whatever these say; honouring one that
    # was copied from the target's config would ruin every draft.
    logger.warning(
        "%s is ignored: it is a setting of the target, this drafter rotates whole heads", where
    )


def _scaling(fields: ConfigFields, table: _Table) -> RopeScaling | None:
    where, kind = table.pop("rope_type", ("", None))
    if kind in (None, "default"):
        return None
    if kind not in ("yarn", "linear"):
        raise mismatch(kind, at=where, needed="'default', 'linear' or 'yarn'")
    factor = check_positive(*table.pop("factor", (f"{where}: its factor", None)))
    if kind == "linear":
        return RopeScaling(kind, factor, None, {})
    original = table.pop(
        "original_max_position_embeddings", fields.find("original_max_position_embeddings")
    )
    numbers = {}
    for name, key in _YARN_NUMBERS.items():
        place, value = table.pop(name, (name, None))
        if value is not None:
            numbers[key] = check_positive(place, value)
    return RopeScaling(kind, factor, check_integer(*original, minimum=1), numbers)
