"""What each tensor of the output is made from."""

from .checkpoint import Checkpoint
from .config import DrafterConfig
from .errors import mismatch
from .mask_embedding import FILE_NAME, MaskEmbedding, read_mask_embedding
from .target import Target
from .tensor_map import (
    EMBEDDING,
    HEAD,
    MappedTensor,
    embedding_tensor,
    head_tensor,
    match_tensors,
    released_names,
)
from .vocabulary import draft_token_ids
from .weights import HalvedHeads, PatchedWeights, Weights


def output_sources(
    config: DrafterConfig, checkpoint: Checkpoint, target: Target
) -> list[tuple[MappedTensor, Weights]]:
    """Lists the tensors of the output in order, with their weights.

    Most come from the checkpoint as they are. An embedding or a head that the checkpoint leaves to
    the target is added where the runtime would not take the target's.

    Raises:
        ConversionError: A tensor is missing, unknown, of another shape, or contradicts config.json.
    """
    stored = released_names(checkpoint.tensors)
    sources: dict[str, tuple[MappedTensor, Weights]] = {}
    for mapped, tensor in match_tensors(config, stored):
        halved = mapped.rotated and config.rope.interleaved
        weights = HalvedHeads(tensor, config.head_dim) if halved else tensor
        sources[mapped.source_name] = (mapped, weights)
    if (token_ids := draft_token_ids(config, stored)) is not None:
        sources["d2t"] = (MappedTensor("d2t", "d2t", token_ids.shape), token_ids)
    own_embedding, own_head = stored.get(EMBEDDING), stored.get(HEAD)
    mask = _mask_embedding(config, checkpoint)
    embedding: Weights | None = own_embedding
    if mask is not None:
        base = own_embedding or target.embedding()
        embedding = PatchedWeights(base, config.mask_token_id, mask.values)
    if embedding is None:
        return list(sources.values())
    added = {EMBEDDING: (embedding_tensor(config), embedding)}
    if own_head is None:
        if not config.tie_word_embeddings:
            # The runtime would take the drafter's own embedding as its head.
            added[HEAD] = (head_tensor(config), target.head())
        elif mask is not None:
            added[HEAD] = (head_tensor(config), own_embedding or target.head())
    return list((added | sources | added).values())


def _mask_embedding(config: DrafterConfig, checkpoint: Checkpoint) -> MaskEmbedding | None:
    path = checkpoint.folder / FILE_NAME
    if not path.is_file():
        return None
    mask = read_mask_embedding(path)
    if mask.token_id != config.mask_token_id:
        needed = f"{config.mask_token_id} as in config.json"
        raise mismatch(mask.token_id, at=f"{FILE_NAME}: mask_token_id", needed=needed)
    if mask.values.shape != (config.hidden_size,):
        needed = f"[{config.hidden_size}] by hidden_size"
        raise mismatch(list(mask.values.shape), at=f"{FILE_NAME}: shape", needed=needed)
    return mask
