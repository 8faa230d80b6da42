"""Targets: dense Llama and Qwen3, and the hybrid Qwen3.5, as llama.cpp evaluates their GGUF."""

from pathlib import Path

import numpy as np

from reference.delta_net import delta_net_layer
from reference.files import Array, read_gguf
from reference.layers import attention, rms_norm, rope, swiglu, visible


class Target:
    """A target model read from a GGUF."""

    def __init__(self, path: Path) -> None:
        self.config, self.tensors = read_gguf(path)
        self.arch = self.config["general.architecture"]
        self.eps = self.config["attention.layer_norm_rms_epsilon"]
        self.n_layer = self.config["block_count"]
        n_embd, n_head = self.config["embedding_length"], self.config["attention.head_count"]
        self.head_dim = self.config.get("attention.key_length", n_embd // n_head)
        self.embedding = self.tensors["token_embd.weight"]
        self.head = self.tensors.get("output.weight", self.embedding)

    def layer_outputs(self, tokens: list[int]) -> list[Array]:
        """The residual stream after each layer, [tokens, n_embd] each."""
        x = self.embedding[tokens]
        outputs = []
        for index in range(self.n_layer):
            x = self._layer(index, x)
            outputs.append(x)
        return outputs

    def logits_of(self, x: Array) -> Array:
        """Logits of last-layer outputs."""
        return rms_norm(x, self.tensors["output_norm.weight"], self.eps) @ self.head.T

    def logits(self, tokens: list[int]) -> Array:
        """[tokens, vocabulary]; row i is about token i + 1."""
        return self.logits_of(self.layer_outputs(tokens)[-1])

    def features(self, tokens: list[int], layers: tuple[int, ...]) -> Array:
        """Outputs of the given layers side by side, [tokens, len(layers) * n_embd]."""
        outputs = self.layer_outputs(tokens)
        return np.concatenate([outputs[layer] for layer in layers], axis=1)

    def _layer(self, index: int, x: Array) -> Array:
        def weight(name: str) -> Array:
            return self.tensors[f"blk.{index}.{name}.weight"]

        a = rms_norm(x, weight("attn_norm"), self.eps)
        if f"blk.{index}.ssm_a" in self.tensors:
            x = x + delta_net_layer(a, self.config, self.tensors, index)
        else:
            x = x + self._attention(index, a)
        norm = "post_attention_norm" if self.arch == "qwen35" else "ffn_norm"
        m = rms_norm(x, weight(norm), self.eps)
        return x + swiglu(m, weight("ffn_gate"), weight("ffn_up"), weight("ffn_down"))

    def _attention(self, index: int, a: Array) -> Array:
        def heads(name: str) -> Array:
            return (a @ self.tensors[f"blk.{index}.{name}.weight"].T).reshape(
                len(a), n_head[name], -1
            )

        n_kv = self.config["attention.head_count_kv"]
        n_head = {"attn_q": self.config["attention.head_count"], "attn_k": n_kv, "attn_v": n_kv}
        positions = np.arange(len(a))
        q, k, v = heads("attn_q"), heads("attn_k"), heads("attn_v")
        # Qwen3.5 stores, for every head, the query and then the gate of its output
        q, gate = q[..., : self.head_dim], q[..., self.head_dim :]
        q, k = self._rotated(index, "attn_q", q), self._rotated(index, "attn_k", k)
        o = attention(q, k, v, visible(positions, positions, None, causal=True))
        if gate.size:
            o = o / (1 + np.exp(-gate))
        return o.reshape(len(a), -1) @ self.tensors[f"blk.{index}.attn_output.weight"].T

    def _rotated(self, index: int, name: str, x: Array) -> Array:
        norm = self.tensors.get(f"blk.{index}.{name}_norm.weight")
        if norm is not None:
            x = rms_norm(x, norm, self.eps)
        return rope(
            x,
            np.arange(len(x)),
            self.config["rope.freq_base"],
            self.config.get("rope.dimension_count", self.head_dim),
            interleaved=self.arch == "llama",
        )
