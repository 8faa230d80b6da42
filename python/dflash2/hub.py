"""Files of the Hugging Face hub."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack

StrPath = str | os.PathLike[str]

_logger = logging.getLogger("dflash2")


class HubOptions(TypedDict, total=False):
    """What is passed to the hub as it is.

    Attributes:
        cache_dir: The hub's cache; None takes the usual one.
        token: An access token; True takes the stored one, False sends none.
        local_files_only: Take what the cache holds, without the network.
    """

    cache_dir: str | Path | None
    token: str | bool | None
    local_files_only: bool


def download_file(
    repo_id: str, filename: str, revision: str | None = None, **options: Unpack[HubOptions]
) -> Path:
    """Return the local path of a file, fetched unless the hub's cache has it.

    Args:
        repo_id: "owner/name".
        filename: Path inside the repository.
        revision: Branch, tag or commit; None is the default branch.
        **options: Passed to the hub.

    Raises:
        OSError: What the hub raises, unchanged: no such repository, file or revision, no access, no
            network.
    """
    # imported late: it reads its environment variables at import, and local files do not need it
    from huggingface_hub import hf_hub_download

    path = Path(
        hf_hub_download(repo_id, filename, revision=revision, library_name="dflash2", **options)
    )
    _logger.info("%s: %s at commit %s", repo_id, filename, _commit(path, filename))
    return path


def resolve_commit(repo_id: str, revision: str | None = None, **options: Unpack[HubOptions]) -> str:
    """Return the commit that `revision` of a checkpoint stands for; errors as `download_file`."""
    return _commit(download_file(repo_id, "config.json", revision, **options), "config.json")


def _commit(path: Path, filename: str) -> str:
    # the hub's cache has the form snapshots/<commit>/<filename>
    return path.parents[len(Path(filename).parts) - 1].name
