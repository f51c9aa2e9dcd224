"""Finds names for the rows of tables: keys of vocabularies, and labels from a file of the user.

A label file is CSV, or TSV if its name ends so. Each line has a key of the table's vocabulary (a row number if there is
no vocabulary), a label, and perhaps a name. If the file has a header, `TABLE=FILE#COLUMN` selects the label's column.
Of a label such as "Action|Comedy" the first part counts. A row with an empty label has no label.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from model_export.errors import ExportError, why
from service.artifact.manifest import Manifest, VocabularyEntry
from service.errors import ArtifactError

T = TypeVar("T")

_TABS = (".tsv", ".tab")


@dataclass(frozen=True, slots=True)
class LabelFile:
    """The value of one flag `--labels`. column: name of the column of labels; None: the second column of the file."""

    table: str
    path: Path
    column: str | None = None

    @staticmethod
    def parse(text: str) -> LabelFile:
        """Parses a value of the flag --labels: "TABLE=FILE" or "TABLE=FILE#COLUMN".

        >>> LabelFile.parse("film=films.csv#genres").column
        'genres'

        Raises:
          ValueError: the text lacks the table or the file.
        """
        table, _, rest = text.partition("=")
        path, _, column = rest.partition("#")
        if not table or not path:
            raise ValueError(f"{text!r} is not TABLE=FILE, such as film=films.csv, or TABLE=FILE#COLUMN")
        return LabelFile(table, Path(path), column or None)


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels and names that a user's file gives to rows of a table.

    labels, names: by row number. title: what the labels mean. unmatched: number of lines whose key is no row.
    """

    labels: Mapping[int, str]
    names: Mapping[int, str]
    title: str
    unmatched: int


def check_readable(file: LabelFile) -> None:
    """Raises ExportError if a label file can not be read; most commands read it after TensorFlow's slow start."""

    def opened() -> list[str]:
        file.path.open("rb").close()
        return []

    _reading(file, opened)


def read_labels(file: LabelFile, num_rows: int, vocabularies: Mapping[Path, VocabularyEntry]) -> Labels:
    """Reads a label file.

    Raises:
      ExportError: the file can not be read, lacks the column, or none of its keys is a row.
    """
    records, header = _parsed(file, num_rows, vocabularies)
    label_at = _column(file, header)
    # The key is in column 0, and the labels may be in column 1 or 2. The rows' names are in the first of these two that
    # has no labels.
    name_at = next(i for i in (1, 2) if i != label_at)
    labels, names, unmatched = {}, {}, 0
    for row, record in records:
        if row is None:
            unmatched += 1
            continue
        if label := _cell(record, label_at).split("|")[0].strip():
            labels[row] = label
        if name := _cell(record, name_at):
            names[row] = name
    if not labels:
        raise _no_label(file, num_rows, vocabularies)
    return Labels(labels, names, header[label_at].strip() if header else "label", unmatched)


def row_labels(file: LabelFile, num_rows: int, vocabularies: Mapping[Path, VocabularyEntry]) -> list[str]:
    """Reads the labels that a file has for the rows of a table, for an artifact; "" for a row without one.

    A file whose name ends neither in .csv nor in .tsv has one label a line: line i is that of row i.

    Raises:
      ExportError: as read_labels(); or a file with a label a line does not have one for each row of the table.
    """
    if file.path.suffix.lower() not in (".csv", *_TABS):
        lines = _reading(file, lambda: file.path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n"))
        if len(lines) != num_rows:
            raise ExportError(
                f"{file.path} has {len(lines):,} labels, table {file.table!r} has {num_rows:,} rows: line 1 is the "
                "label of row 0. A .csv or .tsv file, of row number or key and label, need not name all rows"
            )
        return lines
    records, header = _parsed(file, num_rows, vocabularies)
    at = _column(file, header)
    labels = [""] * num_rows
    for row, record in records:
        if row is not None and row < num_rows and len(record) > at:
            labels[row] = _cell(record, at)
    if not any(labels):
        raise _no_label(file, num_rows, vocabularies)
    return labels


def _parsed(
    file: LabelFile, num_rows: int, vocabularies: Mapping[Path, VocabularyEntry]
) -> tuple[list[tuple[int | None, list[str]]], list[str] | None]:
    records = [record for record in _reading(file, lambda: list(_records(file.path))) if record]
    if not records or len(records[0]) < 2:
        raise ExportError(f"{file.path}: a line of labels is a key, a separator (comma, in a .tsv a tab) and a label")
    rows = _rows_of_keys({record[0].strip() for record in records}, num_rows, vocabularies)
    found = [(rows.get(record[0].strip()), record) for record in records]
    return (found, None) if found[0][0] is not None else (found[1:], records[0])


def _cell(record: list[str], at: int) -> str:
    return record[at].strip() if len(record) > at else ""


def _reading(file: LabelFile, read: Callable[[], list[T]]) -> list[T]:
    try:
        return read()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExportError(f"cannot read the labels of table {file.table!r} from {file.path}: {why(error)}") from error


def _no_label(file: LabelFile, num_rows: int, vocabularies: Mapping[Path, VocabularyEntry]) -> ExportError:
    kind = "a key of its vocabulary" if vocabularies else f"a row number below {num_rows}"
    return ExportError(f"{file.path}: no line has a label and, in its first column, {kind} of table {file.table!r}")


def table_vocabularies(artifact: Path, manifest: Manifest, table: str) -> dict[Path, VocabularyEntry]:
    names = sorted({f.vocabulary for f in manifest.features.values() if f.table == table and f.vocabulary is not None})
    entries = [manifest.vocabularies[name] for name in names]
    # A vocabulary that hashes keys has no file, so the names of its rows are unknown.
    return {artifact / entry.file: entry for entry in entries if entry.file}


def vocabulary_names(vocabularies: Mapping[Path, VocabularyEntry], rows: Collection[int]) -> dict[int, str]:
    """Returns the keys of some rows; a row of unknown keys gets a text. Reads the vocabulary line by line, to save
    memory.

    Raises:
      ArtifactError: a vocabulary's file can not be read.
    """
    wanted = set(rows)
    names: dict[int, str] = {}
    for path, entry in vocabularies.items():
        for row, key in _keys(path, entry):
            if row in wanted:
                names.setdefault(row, key)
        if entry.oov_id in wanted:
            names.setdefault(entry.oov_id, "(any other key)")
        for bucket in range(entry.num_oov_buckets):
            if (row := entry.first_id + entry.size + bucket) in wanted:
                names.setdefault(row, f"(other keys, bucket {bucket})")
    return names


def _rows_of_keys(keys: set[str], num_rows: int, vocabularies: Mapping[Path, VocabularyEntry]) -> dict[str, int]:
    found: dict[str, int] = {}
    for path, entry in vocabularies.items():
        for row, key in _keys(path, entry):
            if key in keys:
                found.setdefault(key, row)
    # If all vocabularies hold strings, a number in the label file that is no key is a row number. A vocabulary of
    # integers would make it an unknown key.
    if all(entry.key_dtype == "string" for entry in vocabularies.values()):
        numbers = {key: int(key) for key in keys if key.isdecimal() and key not in found}
        found |= {key: row for key, row in numbers.items() if row < num_rows}
    return found


def _keys(path: Path, entry: VocabularyEntry) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as lines:
            for i, line in enumerate(lines):
                key = line.removesuffix(b"\n").removesuffix(b"\r")
                yield entry.first_id + i, key.decode(errors="backslashreplace")
    # open() raises ValueError if the path is invalid, for example because it has a null byte.
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read vocabulary {str(path)!r}: {error}") from error


def _records(path: Path) -> Iterator[list[str]]:
    delimiter = "\t" if path.suffix.lower() in _TABS else ","
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.reader(lines, delimiter=delimiter)


def _column(file: LabelFile, header: list[str] | None) -> int:
    if file.column is None:
        return 1
    names = [] if header is None else [name.strip() for name in header]
    if file.column not in names[1:]:
        has = f"its header has {names}" if names else "its first line is no header"
        raise ExportError(f"{file.path} has no column {file.column!r} of labels: {has}")
    return names.index(file.column, 1)
