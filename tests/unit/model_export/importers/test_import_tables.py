"""Imports models from files: tests check the folder, TensorFlow's answers from it, and what a failed import leaves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_export
from model_export.__main__ import main
from model_export.errors import ExportError
from model_export.exporter.versions import COMPARED_ROWS_KEY
from model_export.importers import import_tables as module
from model_export.importers.import_tables import import_summary
from model_export.parity.saved_table import read_tables
from tests.toy_model import manifest_of
from tests.unit.model_export.importers.reading import matrix, small_chunks
from tests.unit.model_export.late import tf

pytestmark = pytest.mark.tf

CREATED = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """Writes two tables of small numbers, one in Fortran order, and a vocabulary; returns the tables' paths by name."""
    np.save(tmp_path / "user.npy", matrix(9, 4))
    np.save(tmp_path / "tag.npy", np.asfortranarray(matrix(5, 3, np.float64)))
    (tmp_path / "tags.txt").write_text("red\ngreen\nblue\nüber\nx y\n", encoding="utf-8")
    return {"user": f"{tmp_path}/user.npy", "tag": f"{tmp_path}/tag.npy"}


@pytest.mark.parametrize("is_large", [False, True])
def test_an_import_is_an_artifact_that_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: dict[str, str], is_large: bool
) -> None:
    if is_large:
        # An import of more than 64 MB is compared by a small copy with the first rows only; the test lowers that limit.
        monkeypatch.setattr(module, "WHOLE_CHECK_BYTES", 100)
        monkeypatch.setattr(module, "COMPARED_ROWS", 3)
        small_chunks(monkeypatch)
    folder = model_export.import_tables(
        tmp_path / "m",
        sources,
        features={"tags": "tag:mean", "first_tag": "tag"},
        keys={"tag": tmp_path / "tags.txt"},
        oov={"user": "zero", "tag": "mean"},
        clock=lambda: CREATED,
    )
    assert folder == tmp_path / "m" / "1" and [path.name for path in (tmp_path / "m").iterdir()] == ["1"]
    manifest = manifest_of(folder)
    assert manifest.provenance["imported_from"] == {"user": "user.npy", "tag": "tag.npy"}
    assert manifest.provenance["created"] == "2024-05-06T07:08:09+00:00"
    assert manifest.provenance.get(COMPARED_ROWS_KEY) == (3 if is_large else None)
    assert manifest.parity["lookup"]["cases"] > 5
    tables = read_tables(folder, manifest)
    np.testing.assert_array_equal(tables["user"][np.arange(9)], matrix(9, 4))
    np.testing.assert_array_equal(tables["tag"][np.arange(6)], [*matrix(5, 3), matrix(5, 3).mean(axis=0)])
    # verify_artifact() compares all signatures of the version with TensorFlow.
    report = model_export.verify_artifact(folder)
    assert set(report.signatures["lookup"].outputs) == {"user", "tags", "first_tag"}
    assert (folder / "assets.extra/tf_serving_warmup_requests").stat().st_size


def test_tensorflows_own_loader_answers(tmp_path: Path, sources: dict[str, str]) -> None:
    folder = model_export.import_tables(
        tmp_path / "m",
        sources,
        features={"tags": "tag:sum"},
        keys={"tag": f"{tmp_path}/tags.txt"},
        oov={"user": "row:2"},
        table_dtype={"tag": "float16"},
    )
    lookup = tf.saved_model.load(str(folder)).signatures["lookup"]
    answer = lookup(
        user=tf.constant([8, 0, 99], tf.int64),
        tags__values=tf.constant(["x y", "green"]),
        tags__row_splits=tf.constant([0, 0, 2], tf.int64),
        tags__weights=tf.zeros([0]),
    )
    np.testing.assert_array_equal(answer["user"], matrix(9, 4)[[8, 0, 2]])
    np.testing.assert_array_equal(answer["tags"], [[0, 0, 0], matrix(5, 3)[4] + matrix(5, 3)[1]])


@pytest.mark.parametrize("is_large", [False, True])
def test_a_table_of_int4_keeps_two_numbers_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(module, "WHOLE_CHECK_BYTES", 1)
        monkeypatch.setattr(module, "COMPARED_ROWS", 3)
    # A row of whole numbers with the largest 7 has scale 1 in int4; the second row is half of such a row.
    rows = np.array([[7, -3, 0], [3.5, 0.5, -1], [0, 0, 0], [-7, 5, 1]], np.float32)
    np.save(tmp_path / "user.npy", rows)
    folder = model_export.import_tables(tmp_path / "m", {"user": f"{tmp_path}/user.npy"}, table_dtype="int4")
    manifest = manifest_of(folder)
    table = manifest.tables["user"]
    assert (table.dtype, table.embedding_dim, table.nbytes) == ("int4", 3, 8)
    assert manifest.provenance["reduced_tables"]["user"]["largest_error"] == 0
    answer = tf.saved_model.load(str(folder)).signatures["lookup"](user=tf.constant([3, 0, 1, 2], tf.int64))
    np.testing.assert_array_equal(answer["user"], rows[[3, 0, 1, 2]])


def test_numbers_that_are_nan_are_allowed_when_asked(tmp_path: Path) -> None:
    rows = matrix(4, 2)
    rows[3] = np.nan
    np.save(tmp_path / "user.npy", rows)
    with pytest.raises(ExportError, match="row 3 of .*user.npy holds nan"):
        model_export.import_tables(tmp_path / "m", {"user": f"{tmp_path}/user.npy"})
    assert not (tmp_path / "m").exists()
    folder = model_export.import_tables(tmp_path / "m", {"user": f"{tmp_path}/user.npy"}, allow_nonfinite=True)
    manifest = manifest_of(folder)
    assert manifest.provenance["nonfinite_values"] == {"user": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "user={t}/user.npy", "--table", "user={t}/tag.npy"], "--table names user twice"),
        (["--table", "user-id={t}/user.npy"], "call it 'user_id'"),
        (["--table", "user={t}/film.npy"], "film.npy does not exist"),
        (["--table", "user={t}/user.npy", "--keys", "film={t}/tags.txt"], "keys names ['film']; the tables are user"),
        (["--table", "user={t}/user.npy", "--keys", "user={t}/tags.txt"], "has 9 rows and 5 keys"),
        (["--table", "user={t}/user.npy", "--oov", "user=drop"], "expected error, zero, mean or row:N"),
        (["--table", "user={t}/user.npy", "--oov", "user=row:9"], "oov of table 'user' is row 9, it has 9 rows"),
        (["--table", "user={t}/user.npy", "--feature", "a=user:max"], "'max' combines nothing"),
        (["--table", "user={t}/user.npy", "--table_dtype", "film=int8"], "table_dtype names ['film']"),
        (["--table", "user={t}/user.npy", "--version", "0"], "versions are positive integers"),
    ],
)
def test_a_fault_is_one_line_and_leaves_nothing(
    tmp_path: Path, sources: dict[str, str], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    before = sorted(tmp_path.iterdir())
    given = [argument.format(t=tmp_path) for argument in arguments]
    assert main(["import", "--out", f"{tmp_path}/m", *given]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path, sources: dict[str, str]) -> None:
    with pytest.raises(ExportError, match="cannot write to .*user.npy: .* is a file"):
        model_export.import_tables(tmp_path / "user.npy", sources)


def test_a_version_stays_where_the_next_import_fails(tmp_path: Path, sources: dict[str, str]) -> None:
    first = model_export.import_tables(tmp_path / "m", sources)
    np.save(tmp_path / "user.npy", np.full((2, 2), np.inf, np.float32))
    with pytest.raises(ExportError, match="holds inf"):
        model_export.import_tables(tmp_path / "m", sources)
    with pytest.raises(ExportError, match="a version is never overwritten"):
        model_export.import_tables(tmp_path / "m", sources, version=1)
    assert list((tmp_path / "m").iterdir()) == [first]


def test_the_command_says_what_it_wrote(
    tmp_path: Path, sources: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: list[Any] = ["import", "--out", tmp_path / "m", "--version", 7, "--table", f"user={sources['user']}"]
    assert main([str(argument) for argument in arguments]) == 0
    assert f"imported and verified: {tmp_path}/m/7" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["user", "=x", "user="])
def test_an_argument_without_a_name_is_told(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        main(["import", "--out", "m", "--table", text])
    told = f"argument --table: {text!r} is not NAME=FILE; model-export import --help lists the arguments"
    assert capsys.readouterr().err == f"model-export import: {told}\n"


def test_the_example_request_of_many_features_stays_short(
    tmp_path: Path, sources: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    features = [f"--feature=f{number}=user" for number in range(9)]
    assert main(["import", "--out", f"{tmp_path}/m", f"--table=user={sources['user']}", *features]) == 0
    request = '{"features": {"f0": [0, 1], "f1": [0, 1], "f2": [0, 1], "f3": [0, 1]}}'
    assert f"curl -d '{request}' " in capsys.readouterr().out


def test_the_command_ends_with_what_to_do_next(
    tmp_path: Path, sources: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [f"--table={name}={path}" for name, path in sources.items()]
    options = ["--keys", f"tag={tmp_path}/tags.txt", "--feature", "tags=tag:mean", "--oov", "tag=zero"]
    assert main(["import", "--out", f"{tmp_path}/my models", *tables, *options]) == 0
    lines = capsys.readouterr().out.replace(str(tmp_path), "T").splitlines()
    request = '{"features": {"tags": [["red", "green"], ["red"]], "user": [0, 1]}}'
    assert lines[-9:] == [
        "imported and verified: T/my models/1",
        "tables:",
        "  user: 9 rows x 4 float32",
        "  tag: 5 rows x 3 float32",
        "features:",
        "  tags: table tag, 5 string keys, any number per row (mean)",
        "  user: table user, row numbers, one per row",
        "serve: embedding-server 'T/my models'",
        f"ask:   curl -d '{request}' localhost:8501/v1/models/my%20models:lookup",
    ]
    served = list(import_summary(tmp_path / "my models" / "1", "s3://bucket/models"))[-2]
    assert served == "serve: embedding-server s3://bucket/models --store_cache_dir=DIR"
