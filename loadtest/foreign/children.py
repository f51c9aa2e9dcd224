"""Builds and adopts foreign models in child processes; if one dies, a new one continues with the next model.

A hundred `model-export adopt` commands would import TensorFlow a hundred times, and Keras 2 and Keras 3 cannot share a
process, so `python -m loadtest.foreign.children` works on many models.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.foreign.models import MANIFEST, SKIPPED, ForeignModel, Skip, model_named
from loadtest.live_server import ROOT

_THIS = "loadtest.foreign.children"
# Number of bytes at the end of a crashed process's output that the report quotes.
_LAST_BYTES = 600
_MARK = "done: "
_KERAS_VARIABLES = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")


def run_each(
    module: str, names: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Runs `python -m module *arguments *names`; if it dies at one name, runs it again with the names after that one.

    Args:
      environment: added to this process's environment, from which choices of Keras are removed.

    Returns:
      By name, the result that the module wrote with `write_result`; {"error": ...} for a name that killed the process.
    """
    found: dict[str, dict[str, Any]] = {}
    inherited = {name: value for name, value in os.environ.items() if name not in _KERAS_VARIABLES}
    waiting = [*names]
    while waiting:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments, *waiting],
            cwd=ROOT,
            env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            capture_output=True,
            text=True,
        )
        lines = [json.loads(line.removeprefix(_MARK)) for line in done.stdout.splitlines() if line.startswith(_MARK)]
        found |= dict(lines)
        waiting = waiting[len(lines) :]
        if waiting:
            found[waiting.pop(0)] = {"error": f"the process ended ({done.returncode}): {done.stderr[-_LAST_BYTES:]}"}
    return found


def write_result(name: str, work: Callable[[], Mapping[str, Any]]) -> None:
    """Calls `work` for a name, and writes the result or the error to stdout, where run_each() reads it."""
    try:
        result = {**work()}
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame else ""
        result = {"error": f"{type(error).__name__}: {error}{where}"}
    sys.stdout.write(f"{_MARK}{json.dumps([name, result])}\n")
    sys.stdout.flush()


_ENVIRONMENTS = {"keras3": {"KERAS_BACKEND": "tensorflow"}, "tf_keras": {"TF_USE_LEGACY_KERAS": "1"}}


def build(models: Sequence[ForeignModel], folder: Path) -> dict[str, str]:
    """Writes each model to folder/<name>/1; returns the reasons, by name, of models that failed or were skipped.

    A model that kills the process counts as failed; the next models are built in a new process.
    """
    failures: dict[str, str] = {}
    for keras, environment in _ENVIRONMENTS.items():
        names = [model.name for model in models if model.keras == keras]
        done = run_each(_THIS, names, [f"--folder={folder}"], environment)
        failures |= {name: result["error"] for name, result in done.items() if "error" in result}
    return failures


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of `adopt` for one foreign model.

    version: the adopted version's folder; None if adopt failed for the `reason`.
    runs: how the server runs each signature of the manifest: "lookup", "cut" or "whole".
    """

    version: Path | None
    reason: str = ""
    runs: dict[str, str] = field(default_factory=dict)


def adopt_each(
    names: Sequence[str], originals: Path, out: Path, *, cuts_all: Callable[[str], bool]
) -> dict[str, Adopted]:
    """Adopts originals/<name>/1 into out/<name> for each name; if one fails, its result has the reason.

    Args:
      cuts_all: says of a name that nothing is timed: the lookups are then cut out of each graph, fast or not.
    """
    cut = json.dumps([name for name in names if cuts_all(name)])
    done = run_each(_THIS, names, [f"--folder={originals}", f"--adopt_to={out}", f"--cut={cut}"], {})
    return {name: _adopted(result) for name, result in done.items()}


def _adopted(result: dict[str, Any]) -> Adopted:
    if "error" in result:
        return Adopted(None, result["error"])
    version = Path(result["version"])
    signatures = json.loads((version / MANIFEST).read_text())["signatures"] if (version / MANIFEST).exists() else {}
    return Adopted(version, "", {name: _run(entry) for name, entry in signatures.items()})


def _run(entry: Mapping[str, Any]) -> str:
    if entry["kind"] == "lookup":
        return "lookup"
    # Of a predict without described lookups TensorFlow computes at least the ids.
    return entry.get("run", "cut") if entry["features"] else "whole"


def _build_one(name: str, folder: Path) -> dict[str, Any]:
    target = folder / name / "1"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        model_named(name).build(target)
    except Skip as reason:
        return {"error": f"{SKIPPED}{reason}"}
    return {}


def _adopt_one(name: str, originals: Path, out: Path, *, measure: bool) -> dict[str, Any]:
    from model_export import adopt

    return {"version": str(adopt(originals / name / "1", out=out / name, measure=measure))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--folder", type=Path, required=True, help="of the models as they were built")
    parser.add_argument("--adopt_to", type=Path, help="adopts the models, in place of building them")
    parser.add_argument("--cut", type=json.loads, default=[], help="names of the models that are not timed")
    options = parser.parse_args()
    for name in options.names:
        if options.adopt_to:
            is_timed = name not in options.cut
            write_result(name, lambda n=name, t=is_timed: _adopt_one(n, options.folder, options.adopt_to, measure=t))
        else:
            write_result(name, lambda n=name: _build_one(n, options.folder))


if __name__ == "__main__":
    main()
