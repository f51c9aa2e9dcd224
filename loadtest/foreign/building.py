"""Builds foreign models, in one child process for each version of Keras (`python -m loadtest.foreign.building`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.foreign.child_process import run_each, write_result
from loadtest.foreign.models import SKIPPED, ForeignModel, Skip, model_named

_ENVIRONMENTS = {"keras3": {"KERAS_BACKEND": "tensorflow"}, "tf_keras": {"TF_USE_LEGACY_KERAS": "1"}}


def build(models: Sequence[ForeignModel], folder: Path, *, scale: int = 1) -> dict[str, str]:
    """Writes each model to folder/<name>/1; returns the reasons, by name, of models that failed or were skipped.

    A model that kills the process counts as failed; the next models are built in a new process.
    """
    failures: dict[str, str] = {}
    for keras, environment in _ENVIRONMENTS.items():
        names = [model.name for model in models if model.keras == keras]
        done = run_each("loadtest.foreign.building", names, [f"--folder={folder}", f"--scale={scale}"], environment)
        failures |= {name: result["error"] for name, result in done.items() if "error" in result}
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--scale", type=int, default=1)
    arguments = parser.parse_args()

    def build_one(name: str) -> dict[str, Any]:
        target = arguments.folder / name / "1"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            model_named(name).build(target, lambda count: count * arguments.scale)
        except Skip as reason:
            return {"error": f"{SKIPPED}{reason}"}
        return {}

    for name in arguments.names:
        write_result(name, lambda name=name: build_one(name))


if __name__ == "__main__":
    main()
