"""The tiny checkpoints as other exporters spell them, and what only some drafters have."""

import copy
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny import MASK

from . import checkpoints
from .checkpoints import Stored, Weights, stored, values

SLIDING = ["sliding_attention", "sliding_attention"]
MIXED = ["sliding_attention", "full_attention"]

# Keys of the drafter itself, not of its decoder, in a speculators export.
_SPECULATORS_TOP = ("block_size", "mask_token_id")
_CONV_SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def speculators_config(*, dflash2: bool = True, **changes: Any) -> dict[str, Any]:
    """`checkpoints.config` as speculators write it; what equals a default is left out."""
    settings = checkpoints.config(dflash2=dflash2)
    drafter = settings.pop("dflash_config")
    decoder = {
        key: settings[key]
        for key in (
            *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
            *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
            *("vocab_size", "layer_types"),
        )
    }
    top = {key: drafter[key] for key in _SPECULATORS_TOP}
    if dflash2:
        top |= {"selector_rank": drafter["selector_rank"]}
    return {
        "architectures": ["DFlash2DraftModel" if dflash2 else "DFlashSpeculator"],
        "speculators_model_type": "dflash2" if dflash2 else "dflash",
        "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": "dflash", "verifier": {"name_or_path": "x/y"}},
        "aux_hidden_state_layer_ids": [tap + 1 for tap in drafter["target_layer_ids"]],
        "draft_vocab_size": settings["vocab_size"],
        "target_hidden_size": None,
        "max_anchors": 256,
        "transformer_layer_config": decoder,
        **top,
        **changes,
    }


def assistant_config() -> dict[str, Any]:
    """A flat config of Meta's assistant, which says nothing about a vocabulary."""
    settings = checkpoints.config(dflash2=False) | {"architectures": ["MuseGlimmerAssistantModel"]}
    settings |= settings.pop("dflash_config")
    for key in ("vocab_size", "is_causal", "num_target_layers"):
        del settings[key]
    return settings | {"layer_types": SLIDING, "sliding_window": 64}


def assistant_weights() -> Weights:
    names = {
        "fc.weight": "encoder.fc.weight",
        "hidden_norm.weight": "encoder.output_norm_enc.weight",
    }
    weights = checkpoints.weights(dflash2=False)
    return {names.get(name, name): tensor for name, tensor in weights.items()}


def mimo_config(**changes: Any) -> dict[str, Any]:
    """MiMo's: every layer slides by use_swa, half of each head turns, values are scaled."""
    settings = checkpoints.config(dflash2=False)
    for key in ("layer_types", "is_causal"):
        del settings[key]
    settings["partial_rotary_factor"] = 0.5
    settings["dflash_config"] |= {
        "use_swa": True,
        "swa_window_size": 64,
        "attention_value_scale": 0.612,
        "attention_sink_bias": True,
        **changes,
    }
    return settings


def mimo_weights(sink: float = 1.0) -> Weights:
    sinks = {
        f"layers.{layer}.self_attn.attention_sink_bias": stored(np.full(4, sink, np.float32))
        for layer in range(2)
    }
    return checkpoints.weights(dflash2=False) | sinks


def gemma_config() -> dict[str, Any]:
    """gemma's: a mask for each kind of layer, and what its target does to logits."""
    settings = copy.deepcopy(checkpoints.config(dflash2=False))
    del settings["is_causal"]
    return settings | {
        "layer_types": MIXED,
        "sliding_window": 64,
        "final_logit_softcapping": 30.0,
        "hidden_act": "gelu_pytorch_tanh",
    }


def interleaved(weights: Weights) -> Weights:
    """The same drafter for RoPE that turns neighbours: what was i and i + 16 lies side by side."""
    order = np.arange(32).reshape(2, 16).T.ravel()
    changed = dict(weights)
    for name, tensor in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")):
            heads = tensor.data.reshape(-1, 32, *tensor.data.shape[1:])
            changed[name] = Stored(tensor.dtype, heads[:, order].reshape(tensor.data.shape))
    return changed


def reduced_vocabulary(ids: NDArray[np.int64], head: NDArray[np.float32]) -> Weights:
    """Head and tables of a drafter that drafts only these tokens."""
    return {
        "lm_head.weight": stored(head[ids], "F32"),
        "d2t": Stored("I64", ids - np.arange(len(ids))),
        "t2d": Stored("BOOL", np.isin(np.arange(320), ids)),
    }


def float32(tensor: Stored) -> NDArray[np.float32]:
    return values(tensor)


class _Global:
    """Pickles as a name of a module that need not exist here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes what torch.save writes for a dict with tensors."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _Global):
            self.write(f"c{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, _Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
        elif isinstance(obj, _Storage):
            self.save(("storage", _Global("torch", obj.kind), "0", "cpu", obj.size))
            self.write(pickle.BINPERSID)
        else:
            super().save(obj, save_persistent_id)


class _Call:
    def __init__(self, function: _Global, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


class _Storage:
    def __init__(self, kind: str, size: int) -> None:
        self.kind, self.size = kind, size


def saved_call(module: str, name: str, *arguments: Any) -> Any:
    """Stands for the result of a call, which unpickling would make."""
    return _Call(_Global(module, name), *arguments)


def saved_tensor(values: NDArray[np.float32], **changes: Any) -> Any:
    """Stands for a BF16 tensor in a dict to save."""
    storage = _Storage(changes.get("kind", "BFloat16Storage"), values.size)
    shape, stride = changes.get("shape", (values.size,)), changes.get("stride", (1,))
    hooks = saved_call("collections", "OrderedDict")
    rebuild = ("torch._utils", "_rebuild_tensor_v2")
    return saved_call(*rebuild, storage, changes.get("offset", 0), shape, stride, False, hooks)


def write_mask_embedding(path: Path, saved: Any, row: NDArray[np.float32]) -> Path:
    """Writes a file as torch.save does; `row` is the storage that `saved` points to."""
    raw = io.BytesIO()
    _Pickler(raw, 2).dump(saved)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mask_embedding/data.pkl", raw.getvalue())
        archive.writestr("mask_embedding/byteorder", "little")
        archive.writestr("mask_embedding/data/0", stored(row).data.tobytes())
    return path


def write_good_mask_embedding(folder: Path, row: NDArray[np.float32]) -> Path:
    saved = {"mask_token_id": MASK, "embedding": saved_tensor(row)}
    return write_mask_embedding(folder / "mask_embedding.pt", saved, row)
