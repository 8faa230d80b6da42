"""Writers of models made at test time: seeded, under 5 MB, loadable by llama.cpp."""

from tiny.adapter import write_lora
from tiny.drafter import write_drafter
from tiny.mutate import mutate_gguf
from tiny.permutation import LIVE_TOKENS, next_token, write_permutation_pair
from tiny.target import write_dense_target, write_hybrid_target
from tiny.vision import write_vision_model
from tiny.vocabulary import BOS, EOS, MASK
from tiny.writing import Pair

__all__ = [
    "BOS",
    "EOS",
    "LIVE_TOKENS",
    "MASK",
    "Pair",
    "mutate_gguf",
    "next_token",
    "write_dense_target",
    "write_drafter",
    "write_hybrid_target",
    "write_lora",
    "write_permutation_pair",
    "write_vision_model",
]
