"""Vocabularies give the rows that TensorFlow's lookup tables and vocabulary columns give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.parity.oracle import Keys
from model_export.spec.features import line_fault
from service.artifact.dict_vocabulary import vocabulary_lines
from service.artifact.manifest import Manifest, VocabularyEntry
from service.tables.vocabulary import open_vocabularies
from service.types import Vocabulary

pytestmark = pytest.mark.tf

# Words outside the vocabulary: ASCII of every length that FarmHash treats differently, and some that are not ASCII.
TEXTS = [("x" * length).encode() for length in range(301)] + ["é日🎬"[i % 3 :].encode() * i for i in range(60)]
NUMBERS = [0, 1, -1, 9, 10, -10, 99, 2**31, -(2**31), 10**18, 2**63 - 1, -(2**63), *range(-300, 300, 7)]


def open_keys(folder: Path, keys: list[Any], **fields: Any) -> Vocabulary:
    """Writes a vocabulary file of keys and opens it; returns the vocabulary."""
    (folder / "v.txt").write_text("".join(f"{key}\n" for key in keys))
    entry = VocabularyEntry("v.txt", len(keys), **fields)
    return open_vocabularies(folder, Manifest({}, {}, {}, {"v": entry}))["v"]


# A key that a line of a vocabulary file can hold, or why not.
LINES = {
    "plain": None,
    " ": None,
    "\t": None,
    "a\x0bb": None,
    "\x1c": None,
    "a\x85b": None,
    "\u2028": None,
    "\x00": None,
    "a\x00": None,
    "\ra": None,
    "a\rb": None,
    "\ufeff": None,
    "": "is empty",
    "a\nb": "a line feed ends a line",
    "a\r": "drop a carriage return",
    "\r": "drop a carriage return",
    "a\r\r": "drop a carriage return",
    "a\ud83d": "half of a surrogate pair",
}


def test_which_keys_a_line_can_hold_is_the_same_everywhere(tf: Any, tmp_path: Path) -> None:
    for number, (key, fault) in enumerate(LINES.items()):
        found = line_fault(key)
        assert (found is None) == (fault is None) and (fault or "") in (found or ""), key
        sent = key.encode(errors="surrogatepass")
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "v.txt").write_bytes(b"first\n" + sent + b"\nlast\n")
        lines = vocabulary_lines(folder / "v.txt")
        if fault is None:
            assert lines == (b"first", sent, b"last")
        file = str(folder / "v.txt")
        whole = tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        try:
            theirs = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(file, tf.string, *whole), -1)
            rows = theirs.lookup(tf.constant([*lines, sent])).numpy().tolist()
        except tf.errors.InvalidArgumentError as error:
            # TensorFlow refuses an empty line.
            assert b"" in lines and "empty line" in str(error), key
            continue
        entry = VocabularyEntry("v.txt", len(lines), oov_id=len(lines))
        ours = open_vocabularies(folder, Manifest({}, {}, {}, {"v": entry}))["v"]
        assert ours.ids_of(np.array([*lines, sent, None], object)[:-1], "x").tolist() == [
            len(lines) if row < 0 else row for row in rows
        ], key
        assert rows[:-1] == list(range(len(lines)))
        assert (rows[-1] == 1) == (fault is None or key.endswith("\ud83d")), key


@pytest.mark.parametrize("num_buckets", [1, 2, 7, 1000])
def test_string_buckets_are_those_of_a_static_vocabulary_table(tf: Any, tmp_path: Path, num_buckets: int) -> None:
    keys = ["red", "grün", "blue"]
    ours = open_keys(tmp_path, keys, num_oov_buckets=num_buckets)
    rows = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant([0, 1, 2], tf.int64))
    theirs = tf.lookup.StaticVocabularyTable(rows, num_buckets)
    sent = [key.encode() for key in keys] + TEXTS
    assert ours.ids_of(np.array(sent, object), "x").tolist() == theirs.lookup(tf.constant(sent)).numpy().tolist()


@pytest.mark.parametrize("num_buckets", [1, 2, 7, 1000])
def test_integer_buckets_are_those_of_a_static_vocabulary_table(tf: Any, tmp_path: Path, num_buckets: int) -> None:
    keys = [100, -5, 7]
    ours = open_keys(tmp_path, keys, num_oov_buckets=num_buckets, key_dtype="int64")
    rows = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, tf.int64), tf.constant([0, 1, 2], tf.int64))
    theirs = tf.lookup.StaticVocabularyTable(rows, num_buckets, lookup_key_dtype=tf.int64)
    sent = np.array(keys + NUMBERS)
    assert ours.ids_of(sent, "x").tolist() == theirs.lookup(tf.constant(sent, tf.int64)).numpy().tolist()


@pytest.mark.parametrize("key_dtype", ["string", "int64"])
@pytest.mark.parametrize("oov", [{"num_oov_buckets": 5}, {"default_value": -1}, {"default_value": 1}])
def test_rows_are_those_of_a_vocabulary_column(tf: Any, tmp_path: Path, key_dtype: str, oov: dict[str, int]) -> None:
    is_string = key_dtype == "string"
    keys: list[Any] = ["red", "grün", "blue"] if is_string else [100, -5, 7]
    sent = [key.encode() for key in keys] + TEXTS if is_string else keys + NUMBERS
    column = tf.feature_column.categorical_column_with_vocabulary_list("f", keys, dtype=tf.as_dtype(key_dtype), **oov)
    places = [[0, i] for i in range(len(sent))]
    sparse = tf.SparseTensor(places, tf.constant(sent, tf.as_dtype(key_dtype)), [1, len(sent)])
    theirs = column._transform_input_tensor(sparse).values.numpy()
    if oov == {"default_value": -1}:
        ours = open_keys(tmp_path, keys, key_dtype=key_dtype, on_oov="drop")
    elif "default_value" in oov:
        ours = open_keys(tmp_path, keys, key_dtype=key_dtype, oov_id=oov["default_value"])
    else:
        ours = open_keys(tmp_path, keys, key_dtype=key_dtype, **oov)
    assert ours.ids_of(np.array(sent, object if is_string else np.int64), "x").tolist() == theirs.tolist()


@pytest.mark.parametrize("mask_token", ["", None])
@pytest.mark.parametrize("num_oov_indices", [1, 2])
def test_rows_are_those_of_keras_string_lookup(
    tf: Any, tmp_path: Path, mask_token: str | None, num_oov_indices: int
) -> None:
    keys = ["red", "grün", "blue"]
    layer = tf.keras.layers.StringLookup(vocabulary=keys, num_oov_indices=num_oov_indices, mask_token=mask_token)
    sent = [key.encode() for key in keys] + [b""] * (mask_token is not None) + TEXTS[1:]
    first_oov = 0 if mask_token is None else 1
    # Keras maps unknown words to one row if there is one OOV index, and to buckets by a hash if there are several.
    oov = {"oov_id": first_oov} if num_oov_indices == 1 else {"num_oov_buckets": 2, "first_oov_id": first_oov}
    empty = {} if mask_token is None else {"empty_key_id": 0}
    ours = open_keys(tmp_path, keys, first_id=first_oov + num_oov_indices, **oov, **empty)
    assert ours.ids_of(np.array(sent, object), "x").tolist() == layer(tf.constant(sent)).numpy().tolist()


@pytest.mark.parametrize("num_bins", [1, 2, 7, 1000])
def test_hashed_keys_are_those_of_keras_hashing_and_of_tensorflow(tf: Any, num_bins: int) -> None:
    layer = tf.keras.layers.Hashing(num_bins)
    words = hashed(num_oov_buckets=num_bins).ids_of(np.array(TEXTS, object), "x").tolist()
    assert words == layer(tf.constant(TEXTS)).numpy().tolist()
    assert words == tf.strings.to_hash_bucket_fast(TEXTS, num_bins).numpy().tolist()
    numbers = hashed(num_oov_buckets=num_bins, key_dtype="int64").ids_of(np.array(NUMBERS), "x").tolist()
    assert numbers == layer(tf.constant(NUMBERS, tf.int64)).numpy().tolist()


def test_hashed_keys_are_the_oracles_too() -> None:
    for key_dtype, sent in (("string", np.array(TEXTS, object)), ("int64", np.array(NUMBERS))):
        entry = VocabularyEntry("", 0, 5, num_oov_buckets=9, key_dtype=key_dtype)
        ours = hashed(first_id=5, num_oov_buckets=9, key_dtype=key_dtype).ids_of(sent, "x")
        assert Keys(entry, ()).rows_of(sent).tolist() == ours.tolist()


def hashed(first_id: int = 0, **fields: Any) -> Vocabulary:
    """Opens a vocabulary that hashes its keys."""
    return open_vocabularies(Path(), Manifest({}, {}, {}, {"v": VocabularyEntry("", 0, first_id, **fields)}))["v"]
