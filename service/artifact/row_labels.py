"""Reads and writes the labels of a table's rows, such as the titles of films: for people, never for lookups.

A version holds the labels of a table in two files below assets.extra/labels/: a plain text with one label a line, and
the place of each line in it, so that the labels of ten million rows are read one at a time and cost a load nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from service.artifact.manifest import LabelEntry, Manifest
from service.errors import ArtifactError
from service.types import Array

LABELS_FOLDER = "assets.extra/labels"
# Most rows that contain a text which RowLabels.find() compares to choose the best.
_MAX_MATCHES = 10_000
# Lines that find() searches at a time, so that other threads run in between: the search holds the interpreter's lock.
_LINES_AT_ONCE = 1 << 16
# Most characters of a label that errors show.
MAX_SHOWN = 100
# Most labels that the error of an unknown label names, and their least similarity.
_MAX_TOLD, _CUTOFF = 3, 0.6
# RowLabels.near() searches for a text in no more bytes of labels; for misspelt labels in no more, by so many parts of
# words, and compares so many labels letter by letter: a request with an unknown label must not cost much more than one
# with a known label.
_MAX_FIND_BYTES, _MAX_NEAR_BYTES, _MAX_PARTS, _MAX_NEAR = 1 << 22, 1 << 18, 8, 200


class RowLabels:
    """The labels of one table's rows; a vocabulary of strings is such a text, too. Concurrency: any thread.

    text: the file's bytes, uint8. starts: [N + 1] int64, where each line begins, and the end.
    first_row: the row of the first line.
    """

    __slots__ = ("text", "starts", "first_row")

    def __init__(self, text: Array, starts: Array, first_row: int = 0) -> None:
        self.text, self.starts, self.first_row = text, starts, first_row

    def of(self, rows: Iterable[int]) -> list[str | None]:
        return [self._line(row - self.first_row) or None for row in rows]

    def find(self, text: str, most: int) -> list[int]:
        """Returns the rows whose labels contain a text in either case; labels that begin with the text come first."""
        if not text:
            return []
        pattern = re.compile(b"".join(_either_case(letter) for letter in text), re.IGNORECASE)
        lines = self._lines_with(pattern, _MAX_MATCHES)
        begins = {line for line in lines if pattern.match(self._line(line).encode())}
        lines.sort(key=lambda line: (line not in begins, line))
        return [line + self.first_row for line in lines[:most]]

    def row_of(self, label: str) -> int | None:
        lines = self._lines_with(re.compile(b"^" + re.escape(label.encode()) + rb"\r?$", re.MULTILINE), 1)
        return lines[0] + self.first_row if label and lines else None

    def near(self, label: str) -> str:
        """Returns the end of an error text about an unknown label, which names similar ones; "" if there are none.

        Similar are labels that contain the text, else labels that are spelt alike. In long texts, these also share the
        begin of a word with it.
        """
        if len(label) > MAX_SHOWN or self.text.size > _MAX_FIND_BYTES:
            return ""
        known = self.of(self.find(label, _MAX_TOLD))
        if not known and self.text.size <= _MAX_NEAR_BYTES:
            words = re.findall(r"\w{2,}", label.lower())
            lowered = RowLabels(np.frombuffer(self.text.tobytes().lower(), np.uint8), self.starts)
            counts: Counter[int] = Counter()
            for part in sorted({*words, *(word[:3] for word in words)}, key=len)[-_MAX_PARTS:]:
                counts.update(lowered._lines_with(re.compile(re.escape(part.encode())), self.text.size))
            if len(self.starts) <= _MAX_NEAR:
                counts.update(range(len(self.starts) - 1))
            likely = sorted(counts, key=lambda line: (-counts[line], line))[:_MAX_NEAR]
            spelt = {one.lower(): one for one in map(self._line, likely)}
            known = [spelt[one] for one in get_close_matches(label.lower(), spelt, _MAX_TOLD, _CUTOFF)]
        told = ", ".join(f'"{one[:MAX_SHOWN]}"' for one in known if one)
        return f" There are: {told}." if told else ""

    def _lines_with(self, pattern: re.Pattern[bytes], most: int) -> list[int]:
        lines: list[int] = []
        for first in range(0, len(self.starts) - 1, _LINES_AT_ONCE):
            starts = self.starts[first : first + _LINES_AT_ONCE + 1]
            begin, end = int(starts[0]), int(starts[-1])
            places = [match.start() + begin for match in pattern.finditer(self.text[begin:end].data)]
            lines += np.unique(np.searchsorted(starts, places, "right") - 1 + first).tolist() if places else []
            if len(lines) >= most:
                break
        return lines

    def _line(self, line: int) -> str:
        if not 0 <= line < len(self.starts) - 1:
            return ""
        begin, end = int(self.starts[line]), int(self.starts[line + 1])
        return self.text[max(begin, 0) : max(end, 0)].tobytes().rstrip().decode(errors="replace")


NO_LABELS = RowLabels(np.empty(0, np.uint8), np.zeros(1, np.int64))


def _either_case(letter: str) -> bytes:
    # The regular expression ignores the case of ASCII letters only, because it searches bytes.
    return (
        b"(?:" + b"|".join(re.escape(form.encode()) for form in sorted({letter, letter.lower(), letter.upper()})) + b")"
    )


def map_file(path: Path) -> Array:
    """Maps a file as uint8, without reading it; raises OSError, or ValueError for an empty file."""
    return np.memmap(path, np.uint8, "r")


def open_labels(artifact: Path, manifest: Manifest, map_: Callable[[Path], object] = map_file) -> dict[str, RowLabels]:
    """Maps the labels of a version's tables, by table; reads of them no more than the last line's end.

    Raises:
      ArtifactError: a file is missing, or there is not one label for each row of its table.
    """
    found = {}
    for table, entry in manifest.labels.items():
        try:
            starts = np.frombuffer(map_(artifact / entry.starts), np.uint8)  # type: ignore[call-overload]
            # A text without a byte can not be mapped. It never is one: a row without a label has an empty line.
            text = np.frombuffer(map_(artifact / entry.file), np.uint8)  # type: ignore[call-overload]
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot read the labels of table {table!r}: {error}") from error
        num_rows, labels = manifest.tables[table].vocabulary_size, starts.size / 8 - 1
        if labels != num_rows:
            raise ArtifactError(
                f"{artifact / entry.starts} has places for {labels:g} labels, and table {table!r} has {num_rows} rows"
            )
        places = starts.view("<i8")
        if places[0] != 0 or places[-1] != text.size:
            raise ArtifactError(
                f"{artifact / entry.file} has {text.size} bytes, and {entry.starts} has lines from {places[0]} to "
                f"{places[-1]}: the two files do not belong together"
            )
        found[table] = RowLabels(text, places)
    return found


def write_labels(artifact: Path, table: str, number: int, labels: Iterable[str]) -> LabelEntry:
    """Writes the labels of a table's rows into an artifact, one for each row; returns the manifest's entry.

    Args:
      number: tells the files of one table from those of another, as a table's name need not be a file's.
    """
    folder = artifact / LABELS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]", "_", table)[:100]
    file, starts = f"{number}-{name}.txt", f"{number}-{name}.starts"
    place, places = 0, [0]
    with (folder / file).open("wb") as text:
        for label in labels:
            # A line is one label, whatever line ends the label has.
            place += text.write(" ".join(label.split()).encode() + b"\n")
            places.append(place)
    np.asarray(places, "<i8").tofile(folder / starts)
    return LabelEntry(f"{LABELS_FOLDER}/{file}", f"{LABELS_FOLDER}/{starts}")
