"""Labels of rows are read one at a time, found by parts of their text, and compared with their table at the load."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from service.artifact.manifest import LabelEntry, Manifest, TableEntry
from service.artifact.row_labels import NO_LABELS, RowLabels, open_labels, write_labels
from service.errors import ArtifactError

TITLES = ["", "Alien (1979)", "Star Wars (1977)", "Before Star Wars", "Été à Paris", "two\nlines\r\n", "star"]


def manifest(entry: LabelEntry, rows: int = len(TITLES)) -> Manifest:
    """Returns the manifest of one table with labels."""
    table = TableEntry("t", rows, 1, "float32", "variables/variables.data-00000-of-00001", 0, 4 * rows, 0)
    return Manifest({"film": table}, {}, {}, labels={"film": entry})


def written(folder: Path, titles: list[str] = TITLES) -> RowLabels:
    """Writes labels and opens them."""
    return open_labels(folder, manifest(write_labels(folder, "film", 0, titles), len(titles)))["film"]


def test_each_row_has_its_label(tmp_path: Path) -> None:
    labels = written(tmp_path)
    assert labels.of([2, 0, 1, 5, 99, -1]) == ["Star Wars (1977)", None, "Alien (1979)", "two lines", None, None]
    assert NO_LABELS.of([0, 1]) == [None, None]


def test_rows_are_found_by_a_part_of_their_label_in_either_case(tmp_path: Path) -> None:
    labels = written(tmp_path)
    assert labels.find("star", 9) == [2, 6, 3]
    assert labels.find("star", 1) == [2]
    assert labels.find("ÉTÉ À", 9) == [4] and labels.find("(19", 9) == [1, 2]
    assert labels.find("", 9) == labels.find("none of them", 9) == NO_LABELS.find("x", 9) == []
    many = written(tmp_path / "many", [f"film {row}" for row in range(150_000)])
    assert many.find("film 149999", 9) == [149_999] and many.row_of("film 70000") == 70_000


def test_a_whole_label_names_one_row(tmp_path: Path) -> None:
    labels = written(tmp_path)
    assert [labels.row_of(one) for one in ("star", "Star Wars (1977)", "Star Wars", "")] == [6, 2, None, None]


def test_a_files_name_is_no_path(tmp_path: Path) -> None:
    entry = write_labels(tmp_path, "../a/b\0", 3, ["x"])
    assert (entry.file, entry.starts) == ("assets.extra/labels/3-.._a_b_.txt", "assets.extra/labels/3-.._a_b_.starts")


def _cut(folder: Path, entry: LabelEntry) -> None:
    (folder / entry.file).write_text("shorter\n")


def _without(folder: Path, entry: LabelEntry) -> None:
    (folder / entry.starts).unlink()


@pytest.mark.parametrize(
    ("damage", "rows", "fault"),
    [
        (_cut, len(TITLES), "the two files do not belong together"),
        (_without, len(TITLES), "cannot read the labels of table 'film': "),
        (lambda *_: None, 8, "has places for 7 labels, and table 'film' has 8 rows"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, damage: Callable[[Path, LabelEntry], None], rows: int, fault: str) -> None:
    entry = write_labels(tmp_path, "film", 0, TITLES)
    damage(tmp_path, entry)
    with pytest.raises(ArtifactError, match=re.escape(fault)):
        open_labels(tmp_path, manifest(entry, rows))
