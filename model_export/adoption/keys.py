"""Describes the vocabulary or the hash by which a graph maps keys to rows, from the exact function of its ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from model_export.adoption.key_evaluation import KeyFunction
from model_export.adoption.key_graph import Fixed, Hashed, Known, NotRead, row_at
from model_export.parity.oracle import Keys, RefusedError
from model_export.tensorflow_setup import tf
from service.artifact.hashes import fingerprint64
from service.artifact.manifest import KeyDtype, VocabularyEntry
from service.types import Array

# The most keys that are hashed to find keys of rows.
_HASHED_KEYS = 4096
# Keys of the vocabulary's start, middle and end that are tried in a graph.
_TOLD_KEYS = 30


_ODD_NUMBERS = (0, -1, 1, 2**31, -(2**31) - 1, 2**32 + 5, 2**63 - 1, -(2**63))
_ODD_TEXTS = (b"", b"0", b"-1", b"nan", b"NaN", b"[UNK]", b"[PAD]", b"https://a.org/b", b"\xff\xfe", b"x" * 300)


def telling_keys(keys: Keys, random: np.random.Generator) -> list[Any]:
    """Returns keys of a vocabulary, keys that differ from them in little, and keys that graphs treat apart."""
    few = [keys.lines[i] for i in random.integers(0, len(keys.lines), _TOLD_KEYS)] if keys.lines else []
    few = [*keys.lines[:_TOLD_KEYS], *few, *keys.lines[-_TOLD_KEYS:]]
    if keys.entry.key_dtype == "int64":
        numbers = [int(line) + step for line in few for step in (-1, 0, 1)]
        return [n for n in (*numbers, *_ODD_NUMBERS) if -(2**63) <= n < 2**63]
    changes: tuple[Callable[[bytes], bytes], ...] = (bytes.upper, bytes.lower, bytes.title, bytes.strip)
    near = [change(key) for key in few for change in changes]
    near += [text for key in few for text in (key[:-1], key + b"x", b" " + key, key + b" ", key + b"\0", key + b"-")]
    signs = [b"%cab%c12%c" % (sign, sign, sign) for sign in b"-._:/,;|#@ \t\n"]
    return [*few, *near, *signs, *_ODD_TEXTS]


def takes_keys(function: KeyFunction, ids: str) -> bool:
    """Says whether ids are found in a vocabulary or hashed, so that the input holds keys and not row numbers."""
    if function.dtype == "string":
        return True
    return any(
        function.flat.nodes[part.partition(":")[0]].op in ("LookupTableFindV2", "StringToHashBucketFast")
        for part in function.parts(ids)
    )


def find_keys(function: KeyFunction, ids: str, conditions: Sequence[str], vocabulary_size: int) -> Keys:
    """Returns the vocabulary or hash by which a graph maps keys to rows of a table; the caller sets its file.

    Args:
      ids: the tensor of ids that the graph reads rows by.
      conditions: tensors of truth values that decide which keys count; they must treat alike all keys of the
        vocabulary, and all others.
      vocabulary_size: rows of the table.

    Raises:
      NotRead: the graph treats some key in a way that no vocabulary has; the message names the key.
    """
    tensors = (ids, *conditions)
    special = function.special_keys(tensors)
    pieces = function.pieces(lambda evaluation: (evaluation.of(ids), *map(evaluation.truth_of, conditions)))
    known = set(special.tolist())
    # A piece of one key that the graph compares keys with is a special key, too; the vocabulary's own are left out.
    apart = [p.keys[0] for p in pieces if p.keys is not None and p.keys[0] == p.keys[1] and p.keys[0] not in known]
    rest = {(p.values) for p in pieces if p.keys is None or p.keys[0] != p.keys[1]}
    if len(rest) != 1:
        raise NotRead("unknown keys are mapped to rows in more than one way")
    ((unknown, *unknown_counts),) = rest
    if apart:
        special = np.concatenate([special, np.array(apart, special.dtype)])
    rows = function.at(ids, special).astype(np.int64)
    counts = np.array([function.at(condition, special) for condition in conditions], bool)
    columns: list[list[bool]] = counts.T.tolist() if conditions else [[]] * special.size
    entry, lines = _entry(function, special, rows, unknown, vocabulary_size)
    keys = Keys(entry, lines)
    _check(keys, special, rows, columns, [_truth(c) for c in unknown_counts], vocabulary_size)
    return keys


def _entry(
    function: KeyFunction, special: Array, rows: Array, unknown: Known, size: int
) -> tuple[VocabularyEntry, tuple[bytes, ...]]:
    base = VocabularyEntry(file="", size=0, key_dtype="string" if function.dtype == "string" else "int64")
    usual: Array
    if isinstance(unknown, Hashed):
        if unknown.first < 0 or unknown.first + unknown.buckets > size:
            raise NotRead("unknown keys are hashed to rows that the table lacks")
        base = replace(base, num_oov_buckets=unknown.buckets, first_oov_id=unknown.first)
        texts = [_line(key) for key in special.tolist()]
        usual = unknown.first + tf.strings.to_hash_bucket_fast(texts, unknown.buckets).numpy() if texts else rows
    elif isinstance(unknown, Fixed):
        row = row_at(unknown, 0, size)
        base = replace(base, oov_id=row if isinstance(row, int) else None)
        usual = np.full(rows.shape, row if isinstance(row, int) else -1)
    else:
        raise NotRead("the rows of unknown keys are not known")
    inside = (rows >= 0) & (rows < size)
    own = np.flatnonzero(inside & (rows != usual))
    key_of: dict[int, bytes] = {}
    for key, row in zip(special[own].tolist(), rows[own].tolist(), strict=True):
        if row in key_of:
            raise NotRead(f"keys {key_of[row]!r} and {key!r} read one row, {row}")
        key_of[row] = _line(key)
    empty = next((row for row, line in key_of.items() if not line), None)
    if empty is not None:
        # No line of a vocabulary file is empty.
        base = replace(base, empty_key_id=empty)
        del key_of[empty]
    key_of |= _fillers(key_of, unknown, {_line(key) for key in special.tolist()}, base.key_dtype)
    first, lines = min(key_of, default=0), tuple(key_of[row] for row in sorted(key_of))
    if any(b"\n" in line or line.endswith(b"\r") for line in lines):
        raise NotRead("a key of the vocabulary holds a line break")
    if not lines:
        if not isinstance(unknown, Hashed):
            raise NotRead("all keys read one row")
        return replace(base, first_id=unknown.first, first_oov_id=None), ()
    entry = replace(base, file="?", size=len(lines), first_id=first)
    if entry.first_oov_id == first + len(lines):
        entry = replace(entry, first_oov_id=None)
    if isinstance(unknown, Hashed) and unknown.buckets == 1:
        entry = replace(entry, num_oov_buckets=0, first_oov_id=None, oov_id=unknown.first)
    return entry, lines


def _fillers(
    key_of: Mapping[int, bytes], unknown: Known, taken: Collection[bytes], key_dtype: KeyDtype
) -> dict[int, bytes]:
    """Returns a key for each row between the vocabulary's rows that none of its keys reads.

    Only unknown keys read such a row, as row 1 behind Keras' mask token. A vocabulary's rows are consecutive, so one
    unknown key stands for the row: it reads the row in any case.

    Raises NotRead if unknown keys do not read the row.
    """
    missing = {*range(min(key_of, default=0), max(key_of, default=-1) + 1)} - key_of.keys()
    found: dict[int, bytes] = {}
    for number in range(_HASHED_KEYS):
        if not missing:
            return found
        text = b"%d" % (-1 - number) if key_dtype == "int64" else b"[UNK%d]" % number if number else b"[UNK]"
        row = unknown.first + fingerprint64(text) % unknown.buckets if isinstance(unknown, Hashed) else _row(unknown)
        if text not in taken and row in missing:
            found[row] = text
            missing.remove(row)
            if isinstance(unknown, Fixed) and missing:
                break
    if not missing:
        return found
    row = min(missing)
    below = max(known for known in key_of if known < row)
    raise NotRead(f"key {key_of[below]!r} reads row {below}, and no key reads row {row} behind it")


def _row(value: Known) -> int:
    assert isinstance(value, Fixed)
    return int(value.value)


def _check(
    keys: Keys, special: Array, rows: Array, counts: list[list[bool]], unknown_counts: list[bool], size: int
) -> None:
    """Compares the described vocabulary with the graph for each special key; raises NotRead for a difference."""
    lines = set(keys.lines)
    of_lines = None
    for key, row, count in zip(special.tolist(), rows.tolist(), counts, strict=True):
        try:
            wanted = keys.row_of(key)
        except RefusedError:
            wanted = -1
        if wanted != (row if 0 <= row < size else -1):
            raise NotRead(f"key {key!r} reads row {row}, and no vocabulary has such a key")
        if _line(key) in lines or (key == b"" and keys.entry.empty_key_id is not None):
            of_lines = count if of_lines is None else of_lines
            if count != of_lines:
                raise NotRead(f"key {key!r} counts under other conditions than other keys")
        elif count != unknown_counts:
            raise NotRead(f"key {key!r} counts under other conditions than other unknown keys")
    has_unknown_row = keys.entry.num_oov_buckets or keys.entry.oov_id is not None
    if has_unknown_row and of_lines not in (None, unknown_counts):
        raise NotRead("unknown keys count under other conditions than other keys")


def _truth(value: Known) -> bool:
    if not isinstance(value, Fixed):
        raise NotRead("a condition on unknown keys is not known")
    return bool(value.value)


def _line(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


def sample_keys(found: Keys) -> Mapping[int, bytes | int]:
    """Returns a key for rows of the table that some key reads: row -> key."""
    entry = found.entry
    key_of: dict[int, bytes] = {entry.first_id + number: line for number, line in enumerate(found.lines)}
    if not found.lines:
        hashed = (b"%d" % number for number in range(_HASHED_KEYS))
        key_of = {entry.first_id + fingerprint64(key) % entry.num_oov_buckets: key for key in hashed}
    return {row: int(key) for row, key in key_of.items()} if entry.key_dtype == "int64" else key_of
