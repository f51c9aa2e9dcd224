"""The commands `delta` and `compact` on a full disk print one sentence, and leave nothing half-written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.integration.process import ROOT
from tests.toy_model import write_toy_model

# A limit on the size of files acts like a full disk: a part is written, then the write fails.
MOST_BYTES = 600


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command of model-export that may write only small files."""
    limited = ["prlimit", f"--fsize={MOST_BYTES}", sys.executable, "-m", "model_export", *map(str, arguments)]
    return subprocess.run(limited, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_one_sentence_and_nothing_half_written(tmp_path: Path) -> None:
    version = write_toy_model(tmp_path / "model" / "1")
    ids = np.arange(5)
    np.savez(tmp_path / "rows.npz", ids=ids, rows=np.ones((5, 2), np.float32))
    delta = ["delta", version, "--table=user", f"--rows={tmp_path / 'rows.npz'}"]
    made = subprocess.run(
        [sys.executable, "-m", "model_export", *map(str, delta)], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    before = sorted(path for path in tmp_path.rglob("*"))
    done = run("compact", version)
    assert done.returncode == 1
    assert done.stderr.startswith("model-export: File too large (") and done.stderr.count("\n") == 1, done.stderr
    assert "make room" in done.stderr
    assert sorted(path for path in tmp_path.rglob("*")) == before
    limited = ["prlimit", "--fsize=10", sys.executable, "-m", "model_export", *map(str, delta)]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("model-export: File too large: nothing was written")
    assert sorted(path for path in tmp_path.rglob("*")) == before
