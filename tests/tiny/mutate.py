"""Changed copies of good files: what a loader must refuse in words."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tiny.writing import add_value, finish

_ARCHITECTURE = "general.architecture"


def mutate_gguf(
    source: Path,
    destination: Path,
    *,
    drop: Collection[str] = (),
    rename: Mapping[str, str] | None = None,
    set_kv: Mapping[str, Any] | None = None,
    resize: Mapping[str, tuple[int, ...]] | None = None,
    set_type: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    add: Collection[gguf.ReaderTensor] = (),
) -> Path:
    """Copies a GGUF with changes.

    Args:
        drop: names of keys and tensors to leave out.
        rename: new names of keys and tensors.
        set_kv: values of keys, added where missing; a key that exists keeps its type.
        resize: shapes (rows first) of F32 or F16 tensors; their content is repeated or cut.
        set_type: of F32 or F16 tensors, I32 or a type that gguf quantizes to.
        add: tensors of another file, as they are there.
    """
    rename, set_kv, resize = dict(rename or {}), dict(set_kv or {}), dict(resize or {})
    set_type = dict(set_type or {})
    reader = gguf.GGUFReader(source)
    known = {*reader.fields, *(tensor.name for tensor in reader.tensors)}
    unknown = {*drop, *rename, *resize, *set_type} - known
    if unknown:
        message = f"{source.name} has no key or tensor {sorted(unknown)}"
        raise KeyError(message)
    architecture = set_kv.pop(_ARCHITECTURE, reader.fields[_ARCHITECTURE].contents())
    writer = gguf.GGUFWriter(destination, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in {_ARCHITECTURE, *drop}:
            continue
        value = set_kv.pop(field.name, field.contents())
        item = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(rename.get(field.name, field.name), value, field.types[0], item)
    for key, value in set_kv.items():
        add_value(writer, key, value)
    for tensor in [*reader.tensors, *add]:
        if tensor.name in drop:
            continue
        data, kind = tensor.data, tensor.tensor_type
        if tensor.name in set_type:
            kind = set_type[tensor.name]
            integers = kind is gguf.GGMLQuantizationType.I32
            data = data.astype(np.int32 if integers else np.float32)
            data = data if integers else gguf.quants.quantize(data, kind)
        if tensor.name in resize:
            data = np.resize(data, resize[tensor.name])
        writer.add_tensor(rename.get(tensor.name, tensor.name), data, raw_dtype=kind)
    finish(writer)
    return destination
