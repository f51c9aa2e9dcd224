"""Compaction folds deltas into a new version, and leaves nothing on a full disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.__main__ import main
from model_export.compaction.compact import compact
from model_export.compaction.deltas import write_delta
from model_export.errors import ExportError
from model_export.parity.integrity import integrity_faults
from service.artifact.delta_file import fingerprint_of
from service.tables.table import open_tables
from tests.deltas import delta_bytes, drop
from tests.integration.process import ROOT
from tests.toy_model import manifest_of, stored_numbers, variable_name, write_toy_model
from tests.unit.deltas.conftest import Served
from tests.unit.deltas.test_version_deltas import upsert


@pytest.fixture
def version(tmp_path: Path) -> Path:
    return write_toy_model(tmp_path / "models" / "1")


def test_it_is_written_as_the_format_says(version: Path) -> None:
    file = write_delta(version, "user", np.array([3, 1]), np.array([[1, 2], [3, 4]]), sequence=4, force=True)
    assert file == version / "deltas" / "0000000000000004.delta"
    data = bytearray(file.read_bytes())
    data[24:32] = bytes(8)
    assert data[:-4] == delta_bytes(version, 4, "user", [3, 1], [[1, 2], [3, 4]], flags=1)[:-4]
    assert write_delta(version, "tag", np.array([0]), np.ones((1, 3))).name == "0000000000000005.delta"
    assert {path.name for path in file.parent.iterdir()} == {"0000000000000004.delta", "0000000000000005.delta"}
    assert integrity_faults(version, manifest_of(version)) == []


@pytest.mark.parametrize(
    ("table", "ids", "rows", "text"),
    [
        ("users", [0], [[1, 2]], "no table 'users'; tables: tag, user"),
        ("user", [5], [[1, 2]], "id 5 at position 0 is out of range"),
        ("user", [0], [[1, 2, 3]], "rows of 3 numbers, it has 2"),
        ("user", [0, 0], [[1, 2], [1, 2]], "id 0 occurs twice"),
        ("user", [0, 1], [[1, 2]], r"expected \[N\] and \[N, D\]"),
        ("user", [0], [[1, np.nan]], "row 0 holds NaN"),
    ],
)
def test_what_a_server_would_refuse_is_not_written(
    version: Path, table: str, ids: list[int], rows: list[list[float]], text: str
) -> None:
    with pytest.raises(ExportError, match=text):
        write_delta(version, table, np.array(ids), np.array(rows))
    with pytest.raises(ExportError, match="number 1 already"):
        for _ in range(2):
            write_delta(version, "user", np.array([0]), np.ones((1, 2)), sequence=1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int4"])
def test_the_new_version_is_what_the_old_one_shows_to_the_bit(tmp_path: Path, dtype: str) -> None:
    version = write_toy_model(tmp_path / "models" / "1", dtype=dtype)
    served = Served(version, tmp_path / "journal")
    write_delta(version, "user", np.array([3, 1]), np.array([[0.3, -7], [1, 2]]), sequence=1)
    served.look()
    upsert(served, [1], [[0.1, 9.5]])
    write_delta(version, "tag", np.array([2]), np.array([[0.7, 0.2, -0.1]]), sequence=9)
    served.look()
    (journal,) = (tmp_path / "journal").rglob("*.journal")
    made = compact(version, journal=journal)
    assert made == tmp_path / "models" / "2" and not (made / "deltas").exists()
    (holder,) = served.registry.holders()
    manifest = manifest_of(made)
    assert manifest.provenance["compacted"]["last_sequence"] == 9
    for name, table in open_tables(made, manifest).items():
        shown = holder.servable.tables[name]
        assert table.weights.tobytes() == shown.weights.tobytes()  # type: ignore[attr-defined]
        assert table.scales.tobytes() == shown.scales.tobytes()  # type: ignore[attr-defined]
    # The tables files of the older version did not change.
    bare = write_toy_model(tmp_path / "again", dtype=dtype)
    for path in (version / "variables").iterdir():
        assert path.read_bytes() == (bare / "variables" / path.name).read_bytes()


def test_a_refused_delta_stops_it_unless_it_is_to_be_left_out(version: Path) -> None:
    with pytest.raises(ExportError, match="no deltas to fold"):
        compact(version)
    drop(version, 1, delta_bytes(version, 1, "user", [1], [[9, 9]]))
    drop(version, 2, delta_bytes(version, 2, "user", [2], [[8, 8]])[:-1])
    with pytest.raises(ExportError, match="0002.delta: .* expected .*--skip_refused"):
        compact(version)
    made = compact(version, skip_refused=True)
    assert open_tables(made, manifest_of(made))["user"].rows(np.array([1, 2])).tolist() == [[9, 9], [2, 20]]
    assert [path.name for path in version.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("place", ["models/journal", "journals", "models/toy/journal"])
def test_a_journal_beside_the_model_is_not_dropped_unless_it_is_to_be(tmp_path: Path, place: str) -> None:
    version = write_toy_model(tmp_path / "models" / "toy" / "1")
    write_delta(version, "user", np.array([3]), np.array([[1, 2]]), sequence=1)
    served = Served(version, tmp_path / place)
    served.look()
    upsert(served, [1], [[0.5, 9.5]])
    (journal,) = (tmp_path / place).rglob("*.journal")
    with pytest.raises(ExportError) as refused:
        compact(version)
    assert str(journal) in str(refused.value)
    assert f"--journal {journal}" in str(refused.value) and "--without_journal" in str(refused.value)
    assert [path.name for path in version.parent.iterdir() if path.is_dir() and path.name != "journal"] == ["1"]
    folded, without = compact(version, journal=journal), compact(version, without_journal=True)
    rows = [open_tables(made, manifest_of(made))["user"].rows(np.array([1, 3])).tolist() for made in (folded, without)]
    assert rows == [[[0.5, 9.5], [1, 2]], [[1, 10], [1, 2]]]
    with pytest.raises(ExportError, match="either journal or without_journal"):
        compact(version, journal=journal, without_journal=True)


def test_journals_of_other_versions_and_empty_ones_hold_nothing_up(tmp_path: Path) -> None:
    version = write_toy_model(tmp_path / "models" / "toy" / "1")
    write_delta(version, "user", np.array([3]), np.array([[1, 2]]), sequence=1)
    mark = fingerprint_of(version)
    for name, data in ((f"2-{mark[:8].hex()}", b"x"), ("1-0123456789abcdef", b"x"), (f"1-{mark[:8].hex()}", b"")):
        (tmp_path / "journals" / "toy").mkdir(parents=True, exist_ok=True)
        (tmp_path / "journals" / "toy" / f"{name}.journal").write_bytes(data)
    assert compact(version).name == "2"


def test_both_are_commands(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "rows.npz", ids=np.array([1]), rows=np.array([[4, 5]], np.float32))
    assert main(["delta", str(version), "--table", "user", "--rows", str(tmp_path / "rows.npz")]) == 0
    assert main(["compact", str(version)]) == 0
    assert "models/2" in capsys.readouterr().out
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    assert main(["delta", str(version), "--table", "user", "--rows", str(tmp_path / "objects.npy")]) == 1
    assert "expected a .npz file" in capsys.readouterr().err


@pytest.mark.tf
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int4"])
def test_tensorflow_restores_it_and_holds_it_against_its_checksums(tf: Any, tmp_path: Path, dtype: str) -> None:
    version = write_toy_model(tmp_path / "models" / "1", dtype=dtype)
    write_delta(version, "user", np.array([3]), np.array([[127, 64]]))
    made = compact(version)
    # TensorFlow checks the checksums of the index's blocks when it opens the checkpoint, and a tensor's checksum when
    # it reads the tensor.
    reader = tf.train.load_checkpoint(str(made / "variables" / "variables"))
    rows = np.asarray(reader.get_tensor(variable_name("user")))
    expected = np.array([[0, 0], [1, 10], [2, 20], [127, 64], [4, 40]], np.float32)
    # The upserted row has its largest number first: in int8, 127 steps of 1; in int4, 7 steps of 127 / 7.
    numbers = stored_numbers(expected, dtype)
    assert rows.tobytes() == numbers.tobytes()
    if dtype == "int8":
        assert np.asarray(reader.get_tensor(variable_name("user", "scales"))).tolist() == [1] * 5
    elif dtype == "int4":
        scales = np.asarray(reader.get_tensor(variable_name("user", "scales")))
        assert scales.tolist() == [np.float32(n) / np.float32(7) for n in (0, 10, 20, 127, 40)]
    assert "tensorflow" in sys.modules


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
