"""Adopts foreign models without a spec in a child process, which runs `python -m loadtest.foreign.adopting`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.foreign.child_process import run_each, write_result

_MANIFEST = Path("assets.extra/lookup_manifest.json")


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of `adopt` for one foreign model.

    version: the adopted version's folder; None if adopt failed for the `reason`.
    runs: how the server runs each signature of the manifest: "lookup", "cut" or "whole".
    """

    version: Path | None
    reason: str = ""
    seconds: float = 0.0
    runs: dict[str, str] = field(default_factory=dict)


def adopt_each(
    names: Sequence[str], originals: Path, out: Path, *, cuts_all: Callable[[str], bool] = lambda name: False
) -> dict[str, Adopted]:
    """Adopts originals/<name>/1 into out/<name> for each name; if one fails, its result has the reason.

    Args:
      cuts_all: says of a name that nothing is timed: the lookups are then cut out of each graph, fast or not.

    A hundred `model-export adopt` commands would import TensorFlow a hundred times, so one process calls the function
    adopt().
    """
    more = ["--cut", json.dumps([name for name in names if cuts_all(name)])]
    done = run_each("loadtest.foreign.adopting", names, [f"--originals={originals}", f"--out={out}", *more], {})
    return {name: _adopted(result) for name, result in done.items()}


def _adopted(result: dict[str, Any]) -> Adopted:
    if "error" in result:
        return Adopted(None, result["error"])
    version = Path(result["version"])
    return Adopted(version, "", result["seconds"], _runs(version))


def _runs(version: Path) -> dict[str, str]:
    manifest = version / _MANIFEST
    if not manifest.exists():
        return {}
    signatures = json.loads(manifest.read_text())["signatures"]
    return {name: _run(entry) for name, entry in signatures.items()}


def _run(entry: Mapping[str, Any]) -> str:
    if entry["kind"] == "lookup":
        return "lookup"
    # Of a predict without described lookups TensorFlow computes at least the ids.
    return entry.get("run", "cut") if entry["features"] else "whole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--originals", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cut", type=json.loads, default=[], help="names of the models that are not timed")
    arguments = parser.parse_args()
    from model_export import adopt

    def adopt_one(name: str) -> dict[str, Any]:
        started_s = time.monotonic()
        version = adopt(arguments.originals / name / "1", out=arguments.out / name, measure=name not in arguments.cut)
        return {"version": str(version), "seconds": time.monotonic() - started_s}

    for name in arguments.names:
        write_result(name, lambda name=name: adopt_one(name))


if __name__ == "__main__":
    main()
