"""Lets the graphs of tests/ops run on a device: a plugin of pytest, `-p on_device`.

The device is the one that DFLASH2_DEVICE names as `dflash2 doctor` lists it.
"""

from __future__ import annotations

import functools
import os
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from ops import ggml

_tensor = ggml._tensor
ggml._FUNCTIONS["ggml-base"] |= {
    "ggml_backend_dev_init": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_alloc_ctx_tensors": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_buffer_clear": (None, [c_void_p, c_int]),
    "ggml_backend_tensor_set": (None, [_tensor, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_get": (None, [_tensor, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_supports_op": (c_bool, [c_void_p, _tensor]),
    "ggml_graph_n_nodes": (c_int, [c_void_p]),
    "ggml_graph_node": (_tensor, [c_void_p, c_int]),
}
ggml._FUNCTIONS["ggml"] = {"ggml_backend_dev_by_name": (c_void_p, [c_char_p])}


@functools.cache
def backend(_n_threads: int = 1) -> int:
    """The device's backend; threads are the CPU's affair."""
    name = os.environ["DFLASH2_DEVICE"]
    device = ggml._function("ggml_backend_dev_by_name")(name.encode())
    assert device, f"there is no device {name}: `dflash2 doctor` lists those that there are"
    result: int = ggml._function("ggml_backend_dev_init")(device, None)
    return result


class DeviceGraph(ggml.Graph):
    """Tensors get memory, filled with NaN or -1, and their values when a plan is made."""

    def __init__(self, memory: int = 1 << 24) -> None:
        self._context = ggml._function("ggml_init")(
            ggml._InitParams(min(memory, 1 << 24), None, True)
        )
        self._values: list[tuple[ggml.Tensor, NDArray[Any]]] = []
        self._buffers: list[int] = []

    def __exit__(self, *error: Any) -> None:
        for buffer in self._buffers:
            ggml._function("ggml_backend_buffer_free")(buffer)
        super().__exit__(*error)

    def plan(self, *results: ggml.Tensor) -> ggml.Plan:
        plan = self.call("ggml_new_graph")
        for result in results:
            ggml._function("ggml_build_forward_expand")(plan, result)
        for i in range(ggml._function("ggml_graph_n_nodes")(plan)):
            node = ggml._function("ggml_graph_node")(plan, i)
            assert ggml._function("ggml_backend_supports_op")(backend(), node), f"node {i}"
        buffer = self.call("ggml_backend_alloc_ctx_tensors", backend())
        if buffer:
            ggml._function("ggml_backend_buffer_clear")(buffer, 0xFF)
            self._buffers.append(buffer)
        for tensor, data in self._values:
            ggml._function("ggml_backend_tensor_set")(tensor, data.ctypes.data, 0, data.nbytes)
        self._values.clear()
        return plan

    def run(self, result: ggml.Tensor, n_threads: int = 1) -> NDArray[Any]:
        ggml.compute(self.plan(result), n_threads)
        fields = result.contents
        shape = tuple(fields.ne)[::-1]
        while len(shape) > 2 and shape[0] == 1:
            shape = shape[1:]
        out = np.empty(shape, np.float32 if fields.type == Type.F32 else np.int32)
        ggml._function("ggml_backend_tensor_get")(result, out.ctypes.data, 0, out.nbytes)
        return out

    def _new(self, kind: Type, shape: tuple[int, ...], data: NDArray[Any]) -> ggml.Tensor:
        ne = (ggml.c_int64 * len(shape))(*reversed(shape))
        tensor = self.call("ggml_new_tensor", kind, len(shape), ne)
        data = np.ascontiguousarray(data)
        assert ggml._function("ggml_nbytes")(tensor) == data.nbytes
        self._values.append((tensor, data))
        return tensor


ggml.Graph = DeviceGraph  # type: ignore[misc]
ggml._backend = backend
