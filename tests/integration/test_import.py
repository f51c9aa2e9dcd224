"""Files of vectors are imported by the command, served by the real server, and looked up over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from tests.integration.conftest import ModelExport
from tests.integration.process import ROOT, ServerProcess, environment

pytestmark = pytest.mark.tf

_USERS = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
_ITEMS = np.random.default_rng(2).normal(size=(40, 4)).astype(np.float32)


def test_imported_vectors_are_what_http_answers(model_export: ModelExport, tmp_path: Path) -> None:
    keys = [f"user-{i}" for i in range(300)]
    pq.write_table(pa.table({"id": keys, "vector": list(_USERS)}), tmp_path / "users.parquet", row_group_size=70)
    save_file({"emb": _ITEMS}, tmp_path / "item.safetensors")
    command = ["import", "--out", tmp_path / "m"]
    command += ["--table", f"user={tmp_path}/users.parquet?key=id&vector=vector", "--oov", "user=zero"]
    command += ["--table", f"item={tmp_path}/item.safetensors:emb", "--feature", "items=item:mean"]
    np.save(tmp_path / "film.npy", np.asfortranarray(_ITEMS.astype(np.float64)))
    np.save(tmp_path / "film_ids.npy", np.arange(40) * 10**12 - 7)
    command += [
        "--table",
        f"film={tmp_path}/film.npy",
        "--keys",
        f"film={tmp_path}/film_ids.npy",
        "--oov",
        "film=row:1",
    ]
    status, told = model_export(*command)
    assert status == 0, told
    assert f"imported and verified: {tmp_path}/m/1\n" in told
    assert f"serve: embedding-server {tmp_path}/m\n" in told
    with ServerProcess(model_base_path=tmp_path / "m").ready() as server:
        asked = {
            "user": ["user-299", "nobody", "user-0"],
            "items": [[0, 39], [], [5]],
            "film": [39 * 10**12 - 7, 8, -7],
        }
        got = {name: np.array(rows, np.float32) for name, rows in server.lookup(asked).items()}
        refused = server.http.post("/v1/models/default:lookup", json={"features": {"items": [[40]]}})
    np.testing.assert_array_equal(got["user"], [_USERS[299], np.zeros(8), _USERS[0]])
    np.testing.assert_allclose(got["items"], [_ITEMS[[0, 39]].mean(axis=0), np.zeros(4), _ITEMS[5]], rtol=1e-6)
    np.testing.assert_array_equal(got["film"], _ITEMS[[39, 1, 0]])
    assert refused.status_code == 400 and "40" in refused.json()["error"]


def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    block = (ROOT / "docs/import.md").read_text(encoding="utf-8").split("```")[1].strip().split("\n")
    assert block[0] == "pip install -e '.[import]'", "the test environment has this extra"
    lines = [line for line in block if not line.startswith(("pip ", "embedding-server ", "curl "))]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    command = ["bash", "-ec", "\n".join(lines)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment(), "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    request = re.search(r"-d '(.*)' localhost:8501(/v1/.*)", block[-1])
    assert request is not None
    with ServerProcess(model_base_path=tmp_path / "models/shop", model_name="shop").ready() as server:
        answer = server.http.post(request.group(2), content=request.group(1))
    assert answer.status_code == 200, answer.text
    assert "[0.25,4.0,8.0]" in answer.text.replace(" ", "")


def test_words_with_any_character_are_what_http_answers(model_export: ModelExport, tmp_path: Path) -> None:
    words = ["the", "a\x85b", "\u2028", "\t", " ", "\x1c", "c\rd", "\x00", '"', "naïve"]
    rows = np.random.default_rng(3).normal(size=(len(words), 3)).astype(np.float32)
    lines = [
        f"{word} {' '.join(repr(float(number)) for number in row)} \n" for word, row in zip(words, rows, strict=True)
    ]
    (tmp_path / "words.vec").write_bytes(f"{len(words)} 3\n{''.join(lines)}".encode())
    status, told = model_export("import", "--out", tmp_path / "m", "--table", f"word={tmp_path}/words.vec")
    assert status == 0, told
    with ServerProcess(model_base_path=tmp_path / "m").ready() as server:
        got = np.array(server.lookup({"word": words[::-1]})["word"], np.float32)
    np.testing.assert_array_equal(got, rows[::-1])
