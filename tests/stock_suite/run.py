"""Runs llama-server's own tests against the packaged llama-server, without and with a drafter.

    pip install requests filelock && python tests/stock_suite/run.py [--json FILE] [TEST ...]

The tests come from the pinned source distribution and lie in a temporary folder while they run.
What passes without a drafter must pass with one, but for the differences that are meant (EXPECTED):
else the exit status is 1. TEST is passed to pytest, as `unit/test_basic.py` is.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "cpp" / "llama_cpp")]

from dflash2 import demo
from dflash2.programs import program_path
from fetch import fetch
from pin import Pin
from tiny import (
    write_dense_target,
    write_drafter,
    write_permutation_pair,
    write_vision_model,
)

# their servers listen on fixed ports from 8080 on
WANTED = ("tools/server/tests/", "models/templates/")
# Tests that pass without a drafter only, and why that is meant.
_TIMINGS = "wants every entry of `timings` to be a number, and `dflash2` is an object"
_EMBEDDINGS = "starts with --embeddings, which is refused beside a drafter"
EXPECTED = {
    "unit.test_metrics::test_metrics_timings_are_finite[1]": _TIMINGS,
    "unit.test_metrics::test_metrics_timings_are_finite[8]": _TIMINGS,
    "unit.test_vision_api::test_vision_embeddings[What is this: <__media__>\\n-malformed-False]": (
        _EMBEDDINGS
    ),
    "unit.test_vision_api::test_vision_embeddings[What is this:\\n-base64-False]": _EMBEDDINGS,
}
# Models that a router finds in its cache, and is asked for by name.
ROUTED = (
    "tinygemma3-GGUF/tiny-Q8_0",
    "test-model-stories260K/tiny-F32",
    "test-model-stories260K-infill/tiny-F32",
)
# outcome and, for what did not pass, its reason
Outcomes = dict[str, tuple[str, str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all outcomes are written")
    parser.add_argument("--tiny", action="store_true", help="minutes, in place of an hour")
    parser.add_argument("tests", nargs="*", metavar="TEST", default=["unit"])
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        unpack(folder)
        models = write_models(folder, args.tiny)
        fill_cache(folder / "cache", Path(models["text"]["model"]))
        plain = run(folder, without_drafters(models), args.tests)
        drafting = run(folder, models, args.tests)
    print_table(plain, drafting)
    if args.json:
        args.json.write_text(json.dumps({"plain": plain, "drafting": drafting}, indent=2))
    worse = [
        name
        for name, (outcome, _) in plain.items()
        if outcome == "passed" and drafting[name][0] == "failed"
    ]
    print("\nwhat fails with the drafter only:")
    for name in worse:
        print(f"  {'as expected' if name in EXPECTED else 'FAILED'} {name}: ", end="")
        print(EXPECTED.get(name, drafting[name][1]))
    return 1 if set(worse) - set(EXPECTED) else 0


def unpack(folder: Path) -> None:
    pin = Pin.load()
    with tarfile.open(fetch(pin), "r|gz") as members:
        for member in members:
            _, _, path = member.name.partition(f"/{pin.folder}/")
            if member.isfile() and path.startswith(WANTED):
                data = members.extractfile(member)
                assert data is not None
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data.read())


def write_models(folder: Path, tiny: bool) -> dict[str, dict[str, str]]:
    """Paths of the models by kind; `tiny`: in place of the demo pair one whose text is letters."""
    text = {"model": str(demo.target_path()), "drafter": str(demo.drafter_path())}
    if tiny:
        target, drafter = write_permutation_pair(folder / "letters", context_weight=0.05)
        # theirs is none that is known without --jinja
        text = {"model": str(target), "drafter": str(drafter), "template": "chatml"}
    return {
        "text": text,
        "vision": {
            "model": str(write_dense_target(folder / "target.gguf")),
            "drafter": str(write_drafter(folder / "drafter.gguf")),
            "mmproj": str(write_vision_model(folder / "vision.gguf", mrope=False)),
        },
    }


def fill_cache(cache: Path, model: Path) -> None:
    """As a hub's downloads lie in it."""
    for name in ROUTED:
        repository, _, file = name.partition("/")
        folder = cache / f"models--ggml-org--{repository}"
        snapshot = folder / "snapshots" / ("5" * 40)
        snapshot.mkdir(parents=True)
        (snapshot / f"{file}.gguf").symlink_to(model)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(snapshot.name)


def without_drafters(models: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {
        kind: {name: path for name, path in paths.items() if name != "drafter"}
        for kind, paths in models.items()
    }


def run(folder: Path, models: dict[str, dict[str, str]], tests: Sequence[str]) -> Outcomes:
    """Outcomes by name of the test."""
    report = folder / "report.xml"
    environment = {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(program_path("llama-server")),
        "LLAMA_CACHE": str(folder / "cache"),
        "DFLASH2_STOCK_SUITE_MODELS": json.dumps(models),
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        ),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "stock_suite_plugin", "-p", "no:anyio"]
    command += ["-m", "not slow", f"--junitxml={report}", "--tb=line", *tests]
    suite = folder / WANTED[0]
    (suite / "tmp").mkdir(exist_ok=True)  # where they write
    result = subprocess.run(
        command, cwd=suite, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode not in (0, 1):
        sys.exit(f"pytest ended with {result.returncode}:\n{result.stdout}\n{result.stderr}")
    return {
        f"{case.get('classname')}::{case.get('name')}": outcome(case)
        for case in ET.parse(report).iter("testcase")
    }


def outcome(case: ET.Element) -> tuple[str, str]:
    for kind, name in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        element = case.find(kind)
        if element is not None:
            return name, (element.get("message") or "").splitlines()[0][:160]
    return "passed", ""


def print_table(plain: Outcomes, drafting: Outcomes) -> None:
    print(f"{'':44}{'no drafter':>24}{'with a drafter':>24}")
    print(f"{'':44}{'pass':>8}{'fail':>8}{'skip':>8}{'pass':>8}{'fail':>8}{'skip':>8}")
    for file in sorted({name.partition("::")[0] for name in plain}):
        counts = [
            Counter(result for name, (result, _) in run.items() if name.partition("::")[0] == file)
            for run in (plain, drafting)
        ]
        numbers = "".join(
            f"{count[result]:8}" for count in counts for result in ("passed", "failed", "skipped")
        )
        print(f"{file:44}{numbers}")
    print("\nwhat could not run on our models:")
    for name, (result, reason) in sorted(plain.items()):
        if result != "passed":
            print(f"  {result} {name}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
