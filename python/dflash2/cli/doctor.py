"""`dflash2 doctor`: what is installed and what it can use."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash2 import Dflash2Error, __version__, _core, demo
from dflash2.cli.output import print_json
from dflash2.native import load_backends
from dflash2.programs import program_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash2.cli.arguments import Subparsers

_GIB = 2**30
_FETCH = "dflash2 doctor --json"


def add_parser(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="show what is installed and what it can use",
        description="Show version, devices, packaged programs and the demo pair.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print as JSON, and fetch the demo target if it is not there",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; the status is 1 when a part of the package is missing."""
    report = _report(demo.target_path if args.json else demo.cached_target)
    if args.json:
        print_json(report)
    else:
        _print_report(report)
    whole = report["server"] and report["demo"]["draft"] and report["backends"]
    return 0 if whole else 1


def _report(target: Callable[[], Path | None]) -> dict[str, Any]:
    load_backends()
    devices = _core.devices()
    errors: list[str] = []

    def path(find: Callable[[], Path | None]) -> str | None:
        try:
            found = find()
        except (Dflash2Error, OSError) as error:
            errors.append(str(error))
            return None
        return None if found is None else str(found)

    return {
        "version": __version__,
        "llama_cpp": {
            "version": _core.llama_cpp_version(),
            "commit": _core.llama_cpp_commit(),
        },
        "backends": [
            {
                "name": device.name,
                "description": device.description,
                "backend": device.backend,
                "memory_free": device.memory_free,
                "memory_total": device.memory_total,
            }
            for device in devices
        ],
        "cpu_features": _core.cpu_features(),
        "fused_ops": {device.name: device.fused_ops for device in devices},
        "server": path(lambda: program_path("llama-server")),
        "demo": {"target": path(target), "draft": path(demo.drafter_path)},
        "errors": errors,
    }


def _print_report(report: dict[str, Any]) -> None:
    pin = report["llama_cpp"]
    print(f"dflash2 {report['version']}, llama.cpp {pin['version']} ({pin['commit']})")
    print(f"CPU features: {' '.join(report['cpu_features'])}")
    print("devices:")
    for device in report["backends"]:
        name = device["name"]
        memory = (
            f"{device['memory_free'] / _GIB:.1f} of {device['memory_total'] / _GIB:.1f} GiB free"
            if device["memory_total"]
            else "memory unknown"
        )
        print(
            f"  {name}: {device['description']} ({device['backend']}), {memory}, "
            f"DFlash 2 ops {report['fused_ops'][name]}"
        )
    print(f"server: {report['server']}")
    print(f"demo drafter: {report['demo']['draft']}")
    print(f"demo target: {report['demo']['target'] or f'not fetched yet: run {_FETCH!r}'}")
    for error in report["errors"]:
        print(f"error: {error}")
