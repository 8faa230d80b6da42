"""The package's ggml through ctypes: graphs of numpy arrays, run on the CPU backend.

Shapes are numpy's, the reverse of ggml's `ne`: the last axis is dense.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from types import TracebackType
from typing import Any

import numpy as np
from dflash2.paths import LIBRARIES
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

_MEMORY = 1 << 28  # reserved for the tensors of a graph, and used only as far as they go


class _Fields(ctypes.Structure):
    """The first fields of ggml_tensor."""

    _fields_ = [
        ("type", c_int),
        ("buffer", c_void_p),
        ("ne", c_int64 * 4),
        ("nb", c_size_t * 4),
    ]


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


Tensor = Any  # POINTER(_Fields)
Plan = Any  # c_void_p
_tensor = POINTER(_Fields)
_conv = [c_void_p, _tensor, _tensor, _tensor, _tensor, c_int, c_int]
_topk = [c_void_p, _tensor, c_int, c_int]
_score = [c_void_p, *[_tensor] * 6, c_int, c_float, c_float]
_attention = [c_void_p, *[_tensor] * 4, c_float, c_float, c_float]
_FUNCTIONS = {
    "ggml-base": {
        "ggml_init": (c_void_p, [_InitParams]),
        "ggml_free": (None, [c_void_p]),
        "ggml_new_tensor": (_tensor, [c_void_p, c_int, c_int, POINTER(c_int64)]),
        "ggml_view_2d": (_tensor, [c_void_p, _tensor, c_int64, c_int64, c_size_t, c_size_t]),
        "ggml_top_k": (_tensor, [c_void_p, _tensor, c_int]),
        "ggml_get_data": (c_void_p, [_tensor]),
        "ggml_nbytes": (c_size_t, [_tensor]),
        "ggml_op_name": (c_char_p, [c_int]),
        "ggml_quantize_chunk": (
            c_size_t,
            [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p],
        ),
        "ggml_new_graph": (c_void_p, [c_void_p]),
        "ggml_build_forward_expand": (None, [c_void_p, _tensor]),
        "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
        "ggml_flash_attn_ext": (_tensor, _attention),
        "ggml_flash_attn_ext_add_sinks": (None, [_tensor, _tensor]),
        "ggml_mul_mat": (_tensor, [c_void_p, _tensor, _tensor]),
        "ggml_dflash2_own_kernel": (None, [_tensor]),
        "ggml_dflash2_conv": (_tensor, _conv),
        "ggml_dflash2_conv_composed": (_tensor, _conv),
        "ggml_dflash2_topk": (_tensor, _topk),
        "ggml_dflash2_topk_composed": (_tensor, _topk),
        "ggml_dflash2_score": (_tensor, _score),
        "ggml_dflash2_score_composed": (_tensor, _score),
    },
    "ggml-cpu": {
        "ggml_backend_cpu_init": (c_void_p, []),
        "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    },
}


@functools.cache
def _function(name: str) -> Any:
    (library,) = (key for key, functions in _FUNCTIONS.items() if name in functions)
    (path,) = LIBRARIES.glob(f"*{library}.*")
    function = getattr(ctypes.CDLL(str(path)), name)
    function.restype, function.argtypes = _FUNCTIONS[library][name]
    return function


@functools.cache
def _backend(n_threads: int) -> int:
    backend: int = _function("ggml_backend_cpu_init")()
    _function("ggml_backend_cpu_set_n_threads")(backend, n_threads)
    return backend


class Graph:
    """Tensors, ops on them, and their results. A context manager, which frees them all."""

    def __init__(self, memory: int = _MEMORY) -> None:
        self._context = _function("ggml_init")(_InitParams(memory, None, False))

    def __enter__(self) -> Graph:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _function("ggml_free")(self._context)

    def call(self, name: str, *arguments: Any) -> Tensor:
        """Calls a function of ggml that takes the context first."""
        return _function(name)(self._context, *arguments)

    def tensor(self, array: F32 | I32) -> Tensor:
        kind = {np.dtype(np.float32): Type.F32, np.dtype(np.int32): Type.I32}[array.dtype]
        return self._new(kind, array.shape, array)

    def rows(self, array: F32 | I32, gap: int = 3) -> Tensor:
        """A view of `array` whose rows lie `gap` values apart, values that nobody may use."""
        n_rows, n = array.shape
        padding = np.full((n_rows, gap), np.nan if array.dtype == np.float32 else -1, array.dtype)
        parent = self.tensor(np.hstack([padding, array]))
        return self.call("ggml_view_2d", parent, n, n_rows, (gap + n) * 4, gap * 4)

    def table(self, values: F32, kind: Type) -> Tensor:
        """`values` as ggml stores them in a type."""
        return self._new(kind, values.shape, store(values.reshape(-1, values.shape[-1]), kind)[0])

    def conv(
        self,
        x: Tensor,
        coeff: Tensor,
        base: Tensor,
        residual: Tensor | None,
        side: int,
        n_block_rows: int,
        *,
        composed: bool = False,
    ) -> Tensor:
        return self.call(_name("conv", composed), x, coeff, base, residual, side, n_block_rows)

    def topk(self, logits: Tensor, k: int, n_vocab: int, *, composed: bool = False) -> Tensor:
        return self.call(_name("topk", composed), logits, k, n_vocab)

    def score(
        self,
        logits: Tensor,
        ids: Tensor,
        gate: Tensor,
        predecessor: Tensor,
        successor: Tensor,
        anchors: Tensor,
        n_slots: int,
        multiplier: float = 0.0,
        softcap: float = 0.0,
        *,
        composed: bool = False,
    ) -> Tensor:
        tensors = (logits, ids, gate, predecessor, successor, anchors)
        return self.call(_name("score", composed), *tensors, n_slots, multiplier, softcap)

    def attention(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        sinks: Tensor | None,
        scale: float,
        softcap: float = 0.0,
        *,
        own_kernel: bool,
    ) -> Tensor:
        """Stock's op, on our kernel if that is asked for."""
        node = self.call("ggml_flash_attn_ext", q, keys, values, mask, scale, 0.0, softcap)
        _function("ggml_flash_attn_ext_add_sinks")(node, sinks)
        if own_kernel:
            _function("ggml_dflash2_own_kernel")(node)
        return node

    def mul_mat(self, weights: Tensor, x: Tensor, *, own_kernel: bool) -> Tensor:
        """Stock's op, on our kernel if that is asked for."""
        node = self.call("ggml_mul_mat", weights, x)
        if own_kernel:
            _function("ggml_dflash2_own_kernel")(node)
        return node

    def top_k(self, logits: Tensor, k: int) -> Tensor:
        """Stock's own, in no order."""
        return self.call("ggml_top_k", logits, k)

    def run(self, result: Tensor, n_threads: int = 1) -> NDArray[Any]:
        """Computes a dense result, which is filled with NaN or -1 before."""
        size, data = _function("ggml_nbytes")(result), _function("ggml_get_data")(result)
        ctypes.memset(data, 0xFF, size)
        compute(self.plan(result), n_threads)
        fields = result.contents
        shape = tuple(fields.ne)[::-1]
        while len(shape) > 2 and shape[0] == 1:
            shape = shape[1:]
        dtype = np.float32 if fields.type == Type.F32 else np.int32
        return np.frombuffer(ctypes.string_at(data, size), dtype).reshape(shape)

    def plan(self, result: Tensor) -> Plan:
        """What gives `result`, for `compute`."""
        plan = self.call("ggml_new_graph")
        _function("ggml_build_forward_expand")(plan, result)
        return plan

    def _new(self, kind: Type, shape: tuple[int, ...], data: NDArray[Any]) -> Tensor:
        ne = (c_int64 * len(shape))(*reversed(shape))
        tensor = self.call("ggml_new_tensor", kind, len(shape), ne)
        data = np.ascontiguousarray(data)
        assert _function("ggml_nbytes")(tensor) == data.nbytes
        ctypes.memmove(_function("ggml_get_data")(tensor), data.ctypes.data, data.nbytes)
        return tensor


def compute(plan: Plan, n_threads: int) -> None:
    status = _function("ggml_backend_graph_compute")(_backend(n_threads), plan)
    assert status == 0


def op_name(number: int) -> str:
    """Upstream's ops have upstream's numbers, which tests/test_patches.py holds them to."""
    name: bytes = _function("ggml_op_name")(number)
    return name.decode()


def store(values: F32, kind: Type) -> tuple[NDArray[Any], F32]:
    """Rows as ggml stores them, and as gguf's own code reads them back."""
    if kind == Type.F32:
        return values, values
    stored = np.empty(values.size * 2, np.uint8)  # no type takes more than 16 bits a value
    values = np.ascontiguousarray(values)
    size = _function("ggml_quantize_chunk")(
        kind, values.ctypes.data, stored.ctypes.data, 0, *values.shape, None
    )
    stored = stored[:size].reshape(len(values), -1)
    if kind == Type.F16:
        return stored, stored.view(np.float16).astype(np.float32)
    return stored, dequantize(stored, kind)


def _name(op: str, composed: bool) -> str:
    return f"ggml_dflash2_{op}{'_composed' if composed else ''}"
