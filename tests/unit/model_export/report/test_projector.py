"""Writes the files of TensorBoard's projector, and reads them with TensorBoard's own plugin if it is installed."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from model_export.report.commands import ProjectedTable, write_projector
from model_export.row_names import LabelFile
from tests.toy_model import toy_tables, write_bundle, write_toy_model


def records(path: Path) -> list[list[str]]:
    """Returns the cells of a file as TensorBoard splits them, at tabs."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]


def test_rows_keys_and_labels_are_written(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "kinds.csv").write_text("key,name,kind\nred,Red,warm\nblue,Blue,cold\n")
    labels = (LabelFile("tag", tmp_path / "kinds.csv", "kind"),)
    folder = tmp_path / "deep" / "projector"
    written = write_projector(artifact, folder, 10, labels)
    assert written == [ProjectedTable("user", 5, 0), ProjectedTable("tag", 4, 0)]
    for number, table in enumerate(toy_tables().values()):
        numbers = np.loadtxt(folder / f"vectors-{number}.tsv", delimiter="\t", dtype=np.float32)
        np.testing.assert_array_equal(numbers, table)
    assert records(folder / "metadata-0.tsv")[:2] == [["name", "row"], ["row 0", "0"]]
    assert records(folder / "metadata-1.tsv") == [
        ["name", "row", "kind"],
        ["(any other key)", "0", ""],
        ["Red", "1", "warm"],
        ["green", "2", ""],
        ["Blue", "3", "cold"],
    ]
    assert re.findall(r'(\w+): "?([^"\n]+)', (folder / "projector_config.pbtxt").read_text()) == [
        *(("tensor_name", "user"), ("tensor_shape", "5"), ("tensor_shape", "2")),
        *(("tensor_path", "vectors-0.tsv"), ("metadata_path", "metadata-0.tsv")),
        *(("tensor_name", "tag"), ("tensor_shape", "4"), ("tensor_shape", "3")),
        *(("tensor_path", "vectors-1.tsv"), ("metadata_path", "metadata-1.tsv")),
    ]


def test_a_sample_is_written_and_each_float_is_kept(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5000, 2)).astype(np.float32)
    folder = write_toy_model(
        tmp_path / "1",
        tables=toy_tables() | {"user": rows},
        edit_manifest=lambda manifest: manifest["tables"]["user"].update(vocabulary_size=5000),
    )
    (written, _) = write_projector(folder, tmp_path / "out", 2500)
    assert written == ProjectedTable("user", 2500, 0)
    ids = [int(row) for _, row in records(tmp_path / "out" / "metadata-0.tsv")[1:]]
    assert len(set(ids)) == 2500 and ids == sorted(ids) and max(ids) > 4500
    numbers = np.loadtxt(tmp_path / "out" / "vectors-0.tsv", delimiter="\t", dtype=np.float32)
    np.testing.assert_array_equal(numbers, rows[ids])


def test_keys_with_tabs_and_line_ends_stay_one_cell(artifact: Path, tmp_path: Path) -> None:
    (artifact / "assets" / "tag.txt").write_bytes("a\tb\nc\x0bd\u2028e\rf\n".encode() + b"\xff\n")
    write_projector(artifact, tmp_path / "out", 10)
    names = [record[0] for record in records(tmp_path / "out" / "metadata-1.tsv")]
    assert names == ["name", "(any other key)", "a b", "c d e f", "\\xff"]
    with (tmp_path / "out" / "metadata-1.tsv").open(newline="") as lines:
        assert [len(cells) for cells in csv.reader(lines, delimiter="\t")] == [2] * 5


def test_rows_that_are_not_finite_are_left_out(artifact: Path, tmp_path: Path) -> None:
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    some = np.array([[1, 2], [np.nan, 1], [np.inf, 1], [3, 4]], np.float32)
    write_bundle(
        artifact / "variables" / "variables", {'q"uo\nté': some, "nothing": np.full((3, 2), np.nan, np.float32)}
    )
    written = write_projector(artifact, tmp_path / "out", 10)
    assert sorted(written, key=lambda table: table.rows) == [
        ProjectedTable("nothing", 0, 3),
        ProjectedTable('q"uo\nté', 2, 2),
    ]
    config = (tmp_path / "out" / "projector_config.pbtxt").read_text(encoding="utf-8")
    assert config.count("embeddings {") == 1 and r'tensor_name: "q\"uo\nt\303\251"' in config


def test_the_plugin_of_tensorboard_reads_the_files(artifact: Path, tmp_path: Path) -> None:
    plugin = pytest.importorskip(
        "tensorboard.plugins.projector.projector_plugin", reason="tensorboard is not installed"
    )
    from tensorboard.plugins.base_plugin import TBContext
    from werkzeug.test import Client

    write_projector(artifact, tmp_path, 10)
    pages = plugin.ProjectorPlugin(TBContext(logdir=str(tmp_path))).get_plugin_apps()
    assert json.loads(Client(pages["/runs"]).get("/runs").data) == ["."]
    for name, table in toy_tables().items():
        tensor = Client(pages["/tensor"]).get("/tensor", query_string={"run": ".", "name": name}).data
        np.testing.assert_array_equal(np.frombuffer(tensor, np.float32).reshape(table.shape), table)
        metadata = Client(pages["/metadata"]).get("/metadata", query_string={"run": ".", "name": name}).data
        assert len(metadata.splitlines()) == 1 + len(table)
