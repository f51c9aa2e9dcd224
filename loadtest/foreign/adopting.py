"""Runs `model-export adopt` on a SavedModel, and reads from the manifest what became of its signatures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.live_server import ROOT

_MANIFEST = Path("assets.extra/lookup_manifest.json")
_REASON_CHARS = 400


@dataclass(frozen=True, slots=True)
class Adopted:
    """What adopt came to.

    version: the adopted version's folder; None where there is none, and reason says why.
    runs: by signature of the manifest: "lookup", "cut" or "whole".
    """

    version: Path | None
    reason: str = ""
    seconds: float = 0.0
    runs: dict[str, str] = field(default_factory=dict)


def adopt(saved_model: Path, out: Path) -> Adopted:
    """Adopts without a spec, in a process of its own; never raises because of the model."""
    command = [sys.executable, "-m", "model_export", "adopt", str(saved_model), "--out", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    started_s = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    seconds = time.monotonic() - started_s
    written = sorted(out.glob("[0-9]*/saved_model.pb"))
    if done.returncode or not written:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        reason = f"exit status {done.returncode}: {said[-1]}" if done.returncode else f"no version written: {said[-1]}"
        return Adopted(None, reason[:_REASON_CHARS], seconds)
    version = written[-1].parent
    return Adopted(version, "", seconds, _runs(version))


def _runs(version: Path) -> dict[str, str]:
    manifest = version / _MANIFEST
    if not manifest.exists():
        return {}
    signatures = json.loads(manifest.read_text())["signatures"]
    # A manifest in an older format says nothing of a run, which then is cut.
    return {
        name: "lookup" if entry["kind"] == "lookup" else entry.get("run", "cut") for name, entry in signatures.items()
    }
