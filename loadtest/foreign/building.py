"""Builds foreign models, those of each Keras in a process of their own: `python -m loadtest.foreign.building`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.foreign.models import SKIPPED, ForeignModel, Skip, all_models
from loadtest.live_server import ROOT

# Of what a process that ended by itself wrote.
_LAST_BYTES = 1500


def build(models: Sequence[ForeignModel], folder: Path, *, scale: int = 1) -> dict[str, str]:
    """Writes each model to folder/<name>/1 and returns why, by name, for each one that failed or was skipped.

    A model that ends the process fails; the models behind it are built in a new one.
    """
    failures: dict[str, str] = {}
    for keras in sorted({model.keras for model in models}):
        waiting = [model.name for model in models if model.keras == keras]
        while waiting:
            done, last_words = _build_in_process(waiting, folder, scale, is_legacy=keras == "tf_keras")
            failures |= {name: reason for name, reason in done.items() if reason}
            waiting = waiting[len(done) :]
            if waiting:
                failures[waiting.pop(0)] = f"the process ended: {last_words}"
    return failures


def _build_in_process(names: Sequence[str], folder: Path, scale: int, *, is_legacy: bool) -> tuple[dict[str, str], str]:
    command = [sys.executable, "-m", "loadtest.foreign.building", f"--folder={folder}", f"--scale={scale}", *names]
    environment: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name not in ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")},
        **({"TF_USE_LEGACY_KERAS": "1"} if is_legacy else {"KERAS_BACKEND": "tensorflow"}),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["built"')]
    return {name: reason for _, name, reason in lines}, done.stderr[-_LAST_BYTES:]


def main() -> None:
    """Builds the named models and writes a line of JSON for each, with the reason where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--scale", type=int, default=1)
    arguments = parser.parse_args()
    models = all_models()
    for name in arguments.names:
        reason = ""
        try:
            target = arguments.folder / name / "1"
            target.parent.mkdir(parents=True, exist_ok=True)
            models[name].build(target, lambda count: count * arguments.scale)
        except Skip as reasoned:
            reason = f"{SKIPPED}{reasoned}"
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        sys.stdout.write(json.dumps(["built", name, reason]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
