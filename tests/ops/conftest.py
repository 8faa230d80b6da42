"""Sources of ggml with our patches, against which GPU sources are built."""

from pathlib import Path

import prepare
import pytest
import series
from pin import Pin


@pytest.fixture(scope="session")
def ggml_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("llama") / "llama.cpp"
    prepare.prepare(tree, Pin.load(), series.patches())
    return tree / "ggml"
