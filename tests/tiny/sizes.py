"""How wide a model is, and what its file says of that."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int

    def metadata(
        self, n_layer: int, *, n_ctx: int = 4096, freq_base: float = 10000.0
    ) -> dict[str, Any]:
        return {
            ".context_length": n_ctx,
            ".embedding_length": self.n_embd,
            ".block_count": n_layer,
            ".feed_forward_length": self.n_ff,
            ".attention.head_count": self.n_head,
            ".attention.head_count_kv": self.n_head_kv,
            ".attention.key_length": self.head_dim,
            ".attention.value_length": self.head_dim,
            ".attention.layer_norm_rms_epsilon": 1e-6,
            ".rope.freq_base": freq_base,
        }
