"""Rows get names and labels from vocabularies and from a user's files."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from model_export import row_names as module
from model_export.errors import ExportError
from model_export.row_names import LabelFile, read_labels, row_labels, table_vocabularies, vocabulary_names
from service.artifact.manifest import Manifest, VocabularyEntry
from service.errors import ArtifactError
from tests.toy_model import write_toy_model


def label_file(folder: Path, text: str, *, name: str = "labels.csv", column: str | None = None) -> LabelFile:
    """Writes a file of labels for the table "t"; returns its description."""
    (folder / name).write_text(text, encoding="utf-8")
    return LabelFile("t", folder / name, column)


def vocabulary(folder: Path, text: str, **fields: object) -> dict[Path, VocabularyEntry]:
    """Writes a vocabulary's file."""
    (folder / "v.txt").write_bytes(text.encode())
    entry = VocabularyEntry(file="v.txt", size=text.count("\n"), **fields)  # type: ignore[arg-type]
    return {folder / "v.txt": entry}


def test_row_numbers_without_a_vocabulary(tmp_path: Path) -> None:
    found = read_labels(label_file(tmp_path, "0,red\n2,blue\n9,green\n"), 5, {})
    assert (found.labels, found.names, found.title, found.unmatched) == ({0: "red", 2: "blue"}, {}, "label", 1)


def test_a_header_names_the_labels_and_another_column_the_rows(tmp_path: Path) -> None:
    text = 'film_id,title,genres\n1,"Toy Story, part 1",Animation|Comedy\n2,GoldenEye,\n'
    found = read_labels(label_file(tmp_path, text, column="genres"), 5, {})
    assert found.labels == {1: "Animation"}
    assert found.names == {1: "Toy Story, part 1", 2: "GoldenEye"}
    assert found.title == "genres"
    assert read_labels(label_file(tmp_path, text), 5, {}).labels == {1: "Toy Story, part 1", 2: "GoldenEye"}


def test_tabs_in_a_tsv_and_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_labels(label_file(tmp_path, "\ufeff1\ta,b\tname\n", name="x.tsv"), 5, {}).labels == {1: "a,b"}


def test_keys_of_a_vocabulary_come_before_row_numbers(tmp_path: Path) -> None:
    vocabularies = vocabulary(tmp_path, "red\n3\n", first_id=1)
    found = read_labels(label_file(tmp_path, "red,warm\n3,number\n4,row\n"), 5, vocabularies)
    assert found.labels == {1: "warm", 2: "number", 4: "row"}


def test_beside_integer_keys_a_number_is_a_key_only(tmp_path: Path) -> None:
    vocabularies = vocabulary(tmp_path, "100\n7\n", key_dtype="int64")
    found = read_labels(label_file(tmp_path, "7,a\n100,b\n1,c\n"), 5, vocabularies)
    assert (found.labels, found.unmatched) == ({1: "a", 0: "b"}, 1)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", None, "a line of labels is a key"),
        ("1\n", None, "a line of labels is a key"),
        ("9,a\n", None, "a row number below 5"),
        ("id,kind\n1,a\n", "genre", r"no column 'genre' of labels: its header has \['id', 'kind'\]"),
        ("1,a\n", "genre", "its first line is no header"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, column: str | None, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        read_labels(label_file(tmp_path, text, column=column), 5, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"labels of table 't' from .*nowhere\.csv"):
        read_labels(LabelFile("t", tmp_path / "nowhere.csv"), 5, {})


@pytest.mark.parametrize("text", ["films.csv", "=films.csv", "film="])
def test_a_flag_without_table_or_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TABLE=FILE"):
        LabelFile.parse(text)


def test_labels_of_rows_for_an_artifact(tmp_path: Path) -> None:
    text = "film_id,title,genres\n1,Toy Story,Animation|Comedy\n3,,x\n9,beyond,x\n"
    assert row_labels(label_file(tmp_path, text, column="genres"), 4, {}) == ["", "Animation|Comedy", "", "x"]
    assert row_labels(label_file(tmp_path, text), 4, {}) == ["", "Toy Story", "", ""]
    vocabularies = vocabulary(tmp_path, "red\n3\n", first_id=1)
    assert row_labels(label_file(tmp_path, "3,three\n"), 4, vocabularies) == ["", "", "three", ""]
    lines = label_file(tmp_path, "\nToy Story, 1\nb\n", name="titles.txt")
    assert row_labels(lines, 3, {}) == ["", "Toy Story, 1", "b"]
    with pytest.raises(ExportError, match="has 3 labels, table 't' has 4 rows: line 1 is the label of row 0"):
        row_labels(lines, 4, {})
    with pytest.raises(ExportError, match="cannot read the labels of table 't'"):
        row_labels(LabelFile("t", tmp_path / "none.txt"), 4, {})


def test_names_of_rows_from_the_toy_vocabulary(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "toy" / "1")
    manifest = Manifest.read(artifact)
    assert manifest is not None
    assert table_vocabularies(artifact, manifest, "user") == {}
    names = vocabulary_names(table_vocabularies(artifact, manifest, "tag"), [0, 1, 3])
    assert names == {0: "(any other key)", 1: "red", 3: "blue"}


def test_names_of_buckets_and_of_strange_bytes(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes(b"a b\r\n\xff\n")
    entry = VocabularyEntry(file="v.txt", size=2, first_id=1, num_oov_buckets=2)
    names = vocabulary_names({tmp_path / "v.txt": entry}, range(5))
    assert names == {1: "a b", 2: "\\xff", 3: "(other keys, bucket 0)", 4: "(other keys, bucket 1)"}


def test_a_vocabulary_that_is_gone_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot read vocabulary"):
        vocabulary_names({tmp_path / "v.txt": VocabularyEntry(file="v.txt", size=1)}, [0])


def test_the_example_holds() -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
