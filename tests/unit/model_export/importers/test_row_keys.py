"""Keys of a separate file, and rows whose key another row has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.importers.formats import open_table
from model_export.importers.table_reader import with_keys
from tests.unit.model_export.importers.reading import matrix, small_chunks

_WORDS = ["the", "of", "the", "a", "of", "the", "x"]


@pytest.mark.parametrize("is_separate", [False, True])
@pytest.mark.parametrize(("keep", "kept"), [("first", [0, 1, 3, 6]), ("last", [3, 4, 5, 6])])
def test_one_row_of_a_key_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str, kept: list[int], is_separate: bool
) -> None:
    small_chunks(monkeypatch, num_bytes=24)
    rows = matrix(7, 3)
    if is_separate:
        np.save(tmp_path / "t.npy", rows)
        reader = with_keys(open_table(f"{tmp_path}/t.npy"), _WORDS, {"duplicates": keep}, "t")
    else:
        lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(_WORDS, rows, strict=True)]
        (tmp_path / "t.txt").write_text("".join(lines))
        reader = with_keys(open_table(f"{tmp_path}/t.txt?duplicates={keep}"), None, {"duplicates": keep}, "t")
    for _ in range(2):
        chunks = list(reader.chunks())
        np.testing.assert_array_equal(np.concatenate([chunk.rows for chunk in chunks]), rows[kept])
        assert [key for chunk in chunks for key in chunk.keys or ()] == [_WORDS[row] for row in kept]


def test_options_at_fault(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", matrix(2, 3))
    reader = open_table(f"{tmp_path}/t.npy?duplicates=first")
    with pytest.raises(ExportError, match=r"t has no keys; leave \?duplicates= out"):
        list(with_keys(reader, None, {"duplicates": "first"}, "t").chunks())
    with pytest.raises(ExportError, match="t: duplicates=any; expected error or first or last"):
        with_keys(reader, None, {"duplicates": "any"}, "t")
    for keys in (["a"], ["a", "b", "c"]):
        with pytest.raises(ExportError, match=f"t has 2 rows and {len(keys)} keys; one key a row"):
            list(with_keys(reader, keys, {}, "t").chunks())
