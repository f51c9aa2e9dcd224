"""Pages of the report: drawings and the projector."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from model_export.report.commands import ProjectedTable, write_projector
from model_export.report.page import Frame, clip, escape, marker, picture, short, text, ticks
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


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (-0.3, 0.3, [-0.2, 0, 0.2]),
        (0.18, 0.94, [0.2, 0.4, 0.6, 0.8]),
        (1, 1, [1]),
        (0, float("inf"), [0]),
    ],
)
def test_ticks_are_round_numbers_within(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == expected


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.12345, "0.1235"),
        (1234, "1,234"),
        (56_000, "56k"),
        (-2e9, "-2G"),
        (1e-7, "1.0e-07"),
        (1e15, "1.0e+15"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert short(value) == shown


def test_text_is_escaped_everywhere() -> None:
    assert escape('<a href="x">\'&\x1b') == "&lt;a href=&quot;x&quot;&gt;&#x27;&amp;\\x1b"
    evil = "<script>alert(1)</script>"
    for drawn in (text(0, 0, evil), marker(0, 1, 1, evil), picture(1, 1, f'"{evil}', "")):
        assert "<script" not in drawn


def test_a_frame_maps_values_to_pixels() -> None:
    frame = Frame(10, 110, 20, 70, (0, 4), (0, 1))
    assert (frame.px(0), frame.px(4), frame.py(0), frame.py(1), frame.px(1)) == (10, 110, 70, 20, 35)
    assert Frame(10, 110, 20, 70, (3, 3), (0, 1)).px(3) == 60


def test_every_marker_is_well_formed_and_neighbours_differ_in_shape() -> None:
    shapes = [ElementTree.fromstring(marker(index, 5, 5, "t")) for index in range(6)]
    assert [shape[0].text for shape in shapes] == ["t"] * 6
    assert len({tuple(shape.attrib.items()) for shape in shapes[:5]}) == 5
    ElementTree.fromstring(marker(0, 5, 5))


def test_long_text_is_clipped() -> None:
    assert clip("abcdef", 4) == "abc…" and clip("abcd", 4) == "abcd"
