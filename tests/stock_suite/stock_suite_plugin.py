"""Loaded into the pytest of llama-server's own tests by run.py.

Its servers get models of ours in place of those of the hub, and in the second of two runs a
drafter. What needs another kind of model is skipped with its name. What a test says of the text of
a hub's model is not asked of ours.
"""

import importlib
import json
import os
import sys
import types
from typing import Any

import pytest

# {"text" or "vision": {"model", "drafter", "mmproj", "template"}}; no drafter in the first run
MODELS: dict[str, dict[str, str]] = json.loads(os.environ["DFLASH2_STOCK_SUITE_MODELS"])
KINDS = {
    "ggml-org/test-model-stories260K": "text",
    "ggml-org/test-model-stories260K-infill": "text",
    "ggml-org/stories15M_MOE": "text",
    "ggml-org/tinygemma3-GGUF:Q8_0": "vision",
}
# the default of the suite's ServerProcess, whose other files are no text models
STORIES = ("ggml-org/models", "tinyllamas/stories260K.gguf")

# a downloader that the suite imports, and that is never called
sys.modules.setdefault("wget", types.ModuleType("wget"))


def pytest_sessionstart() -> None:
    utils: Any = importlib.import_module("utils")
    start = utils.ServerProcess.start

    def start_with_our_model(server: Any, *arguments: Any, **options: Any) -> None:
        settings = choose(server)
        os.environ.update(settings)
        try:
            start(server, *arguments, **options)
        finally:
            for name in settings:
                del os.environ[name]

    def skip_download(url: str, *_: Any) -> str:
        pytest.skip(f"needs {url}")

    utils.ServerProcess.start = start_with_our_model
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.download_file = skip_download
    utils.match_regex = lambda *_: True


def choose(server: Any) -> dict[str, str]:
    """Gives the server its model, and returns the environment that does the rest."""
    source = (server.model_hf_repo, server.model_hf_file)
    kind = "text" if source == STORIES else KINDS.get(server.model_hf_repo or "")
    if kind is None:
        if server.model_url or server.model_hf_repo:
            pytest.skip(f"needs {server.model_url or server.model_hf_repo}")
        return drafting(MODELS["text"])  # a router, whose models are all the same one
    models = MODELS[kind]
    server.model_hf_repo = server.model_hf_file = None
    server.model_file = models["model"]
    if "drafter" in models and (server.spec_type or server.model_draft):
        pytest.skip("drafts with another drafter")
    settings = drafting(models)
    if "mmproj" in models and not server.no_mmproj:
        settings["LLAMA_ARG_MMPROJ"] = models["mmproj"]
    return settings


def drafting(models: dict[str, str]) -> dict[str, str]:
    """Settings of a server of these models: its drafter in the second run, and its template."""
    settings = {}
    if "drafter" in models:
        settings["LLAMA_ARG_DRAFT_DFLASH2"] = models["drafter"]
        # where drafting does not pay, the automatic depth would not draft
        settings["LLAMA_ARG_DFLASH2_DEPTH"] = "3"
    if "template" in models:
        settings["LLAMA_ARG_CHAT_TEMPLATE"] = models["template"]
    return settings
