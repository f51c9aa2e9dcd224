"""Builds tf.Modules that hash strings to rows, or find the rows in TensorFlow's lookup tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Keys, Ragged, Words, vocabulary
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import Tower, save_module, spec, variable

_WORDS = 800
_INPUTS = {"word": Words("word", _WORDS)}


def _add(name: str, find: Callable[[Any, Any, int], Any]) -> None:
    def build(folder: Path, rows: Rows) -> None:
        import tensorflow as tf

        table, tower = variable("word", rows(_WORDS), 16), Tower("tower", 16)

        def read(word: Any) -> Any:
            return {"rows": tf.gather(table, find(tf, word, rows(_WORDS)))}

        signatures = {
            "rows": (read, [spec("word", "string")]),
            "score": (lambda word: {"score": tower(read(word)["rows"])}, [spec("word", "string")]),
        }
        save_module(folder, {"table": table, "tower": tower.variables}, signatures)

    ZOO.add(f"hashed_{name}", _INPUTS, build)


_add("fast", lambda tf, word, size: tf.strings.to_hash_bucket_fast(word, size))
_add("strong", lambda tf, word, size: tf.strings.to_hash_bucket_strong(word, size, [1234, 5678]))
_add("by_crc", lambda tf, word, size: tf.strings.to_hash_bucket(word, size))
_add("fast_of_lower_case", lambda tf, word, size: tf.strings.to_hash_bucket_fast(tf.strings.lower(word), size))


def _save_keyed(folder: Path, rows: Rows, keys: Any, initializer: Any, buckets: int) -> None:
    import tensorflow as tf

    table = variable("word", rows(_WORDS) + max(buckets, 1), 16)
    if buckets:
        found = tf.lookup.StaticVocabularyTable(initializer, buckets)
    else:
        # Without hash buckets, each word outside the vocabulary reads the row after the last word's row.
        found = tf.lookup.StaticHashTable(initializer, rows(_WORDS))

    def read(word: Any) -> Any:
        return {"rows": tf.gather(table, found.lookup(word))}

    save_module(folder, {"table": table, "found": found}, {"serving_default": (read, [keys])})


def _words_file(folder: Path, rows: Rows) -> str:
    # TensorFlow copies this vocabulary file into the assets/ folder of the SavedModel.
    path = folder.parent / "words.txt"
    path.write_text("".join(f"{word}\n" for word in vocabulary("word", rows(_WORDS))))
    return str(path)


def _file_initializer(folder: Path, rows: Rows) -> Any:
    import tensorflow as tf

    index = tf.lookup.TextFileIndex
    file = _words_file(folder, rows)
    return tf.lookup.TextFileInitializer(file, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)


@ZOO.foreign(_INPUTS)
def keyed_by_file(folder: Path, rows: Rows) -> None:
    """Builds a model in which a word's row is its line in an asset file; unknown words read the last row."""
    _save_keyed(folder, rows, spec("word", "string"), _file_initializer(folder, rows), 0)


@ZOO.foreign(_INPUTS)
def keyed_by_file_with_buckets(folder: Path, rows: Rows) -> None:
    """Builds a model in which a word's row is its line in an asset file; unknown words are hashed to 7 rows."""
    _save_keyed(folder, rows, spec("word", "string"), _file_initializer(folder, rows), 7)


@ZOO.foreign(_INPUTS)
def keyed_by_constants(folder: Path, rows: Rows) -> None:
    """Builds a model that finds a word's row in a lookup table of constants in the graph."""
    import tensorflow as tf

    ids = tf.range(rows(_WORDS), dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(vocabulary("word", rows(_WORDS))), ids)
    _save_keyed(folder, rows, spec("word", "string"), initializer, 0)


@ZOO.foreign({"key": Keys(_WORDS)})
def keyed_by_integers(folder: Path, rows: Rows) -> None:
    """Builds a model that finds an integer's row in a lookup table of constants, in another order than the rows."""
    import tensorflow as tf

    ids = tf.reverse(tf.range(rows(_WORDS), dtype=tf.int64), [0])
    keys = tf.range(1, rows(_WORDS) + 1, dtype=tf.int64) * 10
    _save_keyed(folder, rows, spec("key"), tf.lookup.KeyValueTensorInitializer(keys, ids), 0)


@ZOO.foreign({"item": Ragged(_WORDS, splits="item_splits")})
def hashed_of_integers(folder: Path, rows: Rows) -> None:
    """Builds a model that hashes ids as decimal text, and returns the mean of their rows."""
    import tensorflow as tf

    table = variable("word", rows(_WORDS), 16)

    def read(item: Any, item_splits: Any) -> Any:
        ids = tf.strings.to_hash_bucket_fast(tf.strings.as_string(item), rows(_WORDS))
        return {"mean": tf.reduce_mean(tf.RaggedTensor.from_row_splits(tf.gather(table, ids), item_splits), axis=1)}

    specs = [spec("item"), spec("item_splits")]
    save_module(folder, {"table": table}, {"serving_default": (read, specs)})
