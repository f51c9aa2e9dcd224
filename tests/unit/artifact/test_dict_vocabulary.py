"""The reference's vocabularies: lines are rows, other keys follow the policy of the entry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.artifact.dict_vocabulary import DictVocabulary, open_vocabularies
from service.artifact.manifest import Manifest, VocabularyEntry
from service.errors import ArtifactError, IdOutOfRange


def opened(folder: Path, text: bytes, entry: VocabularyEntry) -> DictVocabulary:
    """Writes a vocabulary file and opens it."""
    (folder / "words.txt").write_bytes(text)
    return open_vocabularies(folder, Manifest({}, {}, {}, {"v": entry}))["v"]


def ids(vocabulary: DictVocabulary, *keys: object) -> list[int]:
    """Returns the rows of some keys."""
    return list(map(int, vocabulary.ids_of(np.array([*keys, None], object)[:-1], "x")))


def test_lines_are_keys(tmp_path: Path) -> None:
    words = opened(tmp_path, b"red\r\ngr\xc3\xbcn\nblue", VocabularyEntry("words.txt", 3, first_id=2, oov_id=0))
    assert ids(words, b"red", "grün".encode(), "blue", b"pink", b"") == [2, 3, 4, 0, 0]
    assert (words.key_of(3), words.key_of(0), words.example_key) == ("grün".encode(), None, b"red")
    codes = opened(tmp_path, b"100\n-5\n", VocabularyEntry("words.txt", 2, key_dtype="int64", on_oov="drop"))
    assert codes.ids_of(np.array([[-5], [7]]), "x").tolist() == [[1], [-1]]


def test_unknown_keys(tmp_path: Path) -> None:
    strict = opened(tmp_path, b"red\n", VocabularyEntry("words.txt", 1))
    with pytest.raises(IdOutOfRange, match="'pink' at position 1 is not in its vocabulary of 1 strings"):
        ids(strict, b"red", b"pink")
    # FarmHash's Fingerprint64 of "hello" is 13009744463427800296.
    buckets = opened(tmp_path, b"red\n", VocabularyEntry("words.txt", 1, first_id=3, num_oov_buckets=7))
    assert ids(buckets, b"hello") == [4 + 13009744463427800296 % 7]
    hashed = open_vocabularies(tmp_path, Manifest({}, {}, {}, {"v": VocabularyEntry("", 0, num_oov_buckets=7)}))["v"]
    assert ids(hashed, b"hello") == [13009744463427800296 % 7]
    masked = opened(tmp_path, b"red\n", VocabularyEntry("words.txt", 1, first_id=2, oov_id=1, empty_key_id=0))
    assert ids(masked, b"", b"red", b"x") == [0, 2, 1]


@pytest.mark.parametrize(
    ("text", "entry", "match"),
    [
        (b"red\n", VocabularyEntry("words.txt", 2), "has 1 lines, its manifest says 2"),
        (b"", VocabularyEntry("words.txt", 1), "has 0 lines"),
        (b"red\nred\n", VocabularyEntry("words.txt", 2), "holds b'red' twice"),
        (b"1\nx\n", VocabularyEntry("words.txt", 2, key_dtype="int64"), "line 2 is b'x', expected an int64"),
        (b"9223372036854775808\n", VocabularyEntry("words.txt", 1, key_dtype="int64"), "expected an int64"),
    ],
)
def test_a_file_that_contradicts_its_entry_is_refused(
    text: bytes, entry: VocabularyEntry, match: str, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match=match):
        opened(tmp_path, text, entry)
