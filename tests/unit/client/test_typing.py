"""A type checker finds ids of a wrong type, and accepts all that the client takes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_PROGRAM = """\
import numpy as np
from embedding_client import EmbeddingClient

client = EmbeddingClient("localhost:8500", model="m")
ids = {"user_id": [1, 2]}
client.lookup(ids)
client.lookup({"a": [1, 2], "b": [["x"], []], "c": np.array([1]), "d": ("x", "y"), "e": [np.array([1])], "f": range(3)})
client.lookup({"a": "abc"})  # wrong
client.lookup({"a": b"abc"})  # wrong
client.lookup([1, 2])  # wrong
client.lookup({"a": [1.5]})  # wrong
"""


def test_mypy_accepts_ids_and_refuses_a_text_in_their_place(tmp_path: Path) -> None:
    from mypy import api

    file = tmp_path / "program.py"
    file.write_text(_PROGRAM)
    found, faults, _ = api.run(["--strict", "--no-error-summary", f"--cache-dir={tmp_path}", str(file)])
    assert not faults
    lines = {int(line.split(":")[1]) for line in found.splitlines() if ": error: " in line}
    assert lines == {number for number, line in enumerate(_PROGRAM.splitlines(), 1) if line.endswith("# wrong")}, found
