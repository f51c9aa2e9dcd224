"""Hash indexes over the keys of a vocabulary, compiled by numba: some 15 bytes a key beside the mapped file.

An index is an int32 array of slots, a power of two in number, each the number of a key or EMPTY; a key lies in the
first free slot at or behind its hash. Keys themselves stay where they are: strings in the lines of the file, integers
in one array. The GIL is released.

NOTE: numba's cache looks at this file's date only; change fingerprint.py and this file has to be touched too.

Source: the hash of OOV buckets is TensorFlow 2.21's: `IdTableWithHashBuckets` of python/ops/lookup_ops.py with its
FastHashSpec, over the bytes of a string or the decimal digits of an integer.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from service.lookup.fingerprint import BYTES, fingerprint64

EMPTY = -1
OK = -1
NO_EMPTY_KEY = -1
# More than a request has keys.
STRANGER = 1 << 32

_SLOTS = types.Array(types.int32, 1, "C")
_INTEGERS = types.Array(types.int64, 1, "C", readonly=True, aligned=False)
_OUT = types.Array(types.int64, 1, "C")
_INT = types.int64
_U64 = types.uint64

_NEWLINE, _RETURN, _MINUS, _ZERO, _NINE = 10, 13, 45, 48, 57
_MIX = np.uint64(0x9E3779B97F4A7C15)
_32, _0, _1, _10 = (np.uint64(n) for n in (32, 0, 1, 10))
_MAX = np.uint64(2**63 - 1)


@njit(_INT(BYTES), cache=True, nogil=True)
def count_lines(data):  # type: ignore[no-untyped-def]
    """Returns the number of lines of a file; the last may lack its newline."""
    size = data.shape[0]
    count = 0
    for i in range(size):
        count += data[i] == _NEWLINE
    return count + 1 if size > 0 and data[size - 1] != _NEWLINE else count


@njit(types.void(BYTES, _OUT), cache=True, nogil=True)
def find_lines(data, starts):  # type: ignore[no-untyped-def]
    """Writes where each of N lines starts, and one more as if another followed: starts [N+1] int64."""
    line = 0
    if starts.shape[0] > 1:
        starts[0] = 0
    for i in range(data.shape[0]):
        if data[i] == _NEWLINE:
            line += 1
            starts[line] = i + 1
    if line < starts.shape[0] - 1:
        starts[line + 1] = data.shape[0] + 1


@njit(_INT(BYTES, _INTEGERS, _INT), cache=True, nogil=True)
def line_length(data, starts, line):  # type: ignore[no-untyped-def]
    """Returns how many bytes a line has without its ending: newline or CR LF, as in TensorFlow's file initializer."""
    begin, end = starts[line], starts[line + 1] - 1
    if end > begin and data[end - 1] == _RETURN:
        end -= 1
    return end - begin


@njit(types.boolean(BYTES, _INTEGERS, _INT, BYTES, _INT, _INT), cache=True, nogil=True)
def _is_line(data, starts, line, keys, at, length):  # type: ignore[no-untyped-def]
    if line_length(data, starts, line) != length:
        return False
    begin = starts[line]
    for i in range(length):
        if data[begin + i] != keys[at + i]:
            return False
    return True


@njit(_INT(BYTES, _INTEGERS, _SLOTS), cache=True, nogil=True)
def index_strings(data, starts, slots):  # type: ignore[no-untyped-def]
    """Fills slots (EMPTY before) with the lines of a file; returns OK, or the first line that was there before."""
    mask = slots.shape[0] - 1
    for line in range(starts.shape[0] - 1):
        begin, length = starts[line], line_length(data, starts, line)
        slot = np.int64(fingerprint64(data, begin, length) & np.uint64(mask))
        while slots[slot] != EMPTY:
            if _is_line(data, starts, slots[slot], data, begin, length):
                return line
            slot = (slot + 1) & mask
        slots[slot] = line
    return OK


@njit(_INT(BYTES, _INTEGERS, _SLOTS, BYTES, _INTEGERS, _INT, _INT, _INT, _INT, _INT, _OUT), cache=True, nogil=True)
def find_strings(  # type: ignore[no-untyped-def]
    data, starts, slots, keys, splits, empty_id, first_id, first_bucket, oov_id, num_oov_buckets, ids
):
    """Writes the row of each key: first_id + line, or that of its OOV bucket, or oov_id.

    Returns OK where the vocabulary has all keys, else (number of those it lacks) * STRANGER + place of the first.

    Args:
      data, starts, slots: the vocabulary.
      keys: bytes of N keys end to end, key i from splits[i] to splits[i + 1].
      empty_id: row of the empty string, or NO_EMPTY_KEY where it is a key like any other.
      first_bucket, num_oov_buckets: rows of the buckets; 0 for none.
      ids: [N] int64, written.
    """
    mask = slots.shape[0] - 1
    strangers = first = 0
    for i in range(ids.shape[0]):
        begin, length = splits[i], splits[i + 1] - splits[i]
        if length == 0 and empty_id != NO_EMPTY_KEY:
            ids[i] = empty_id
            continue
        key_hash = fingerprint64(keys, begin, length)
        slot = np.int64(key_hash & np.uint64(mask))
        while slots[slot] != EMPTY and not _is_line(data, starts, slots[slot], keys, begin, length):
            slot = (slot + 1) & mask
        if slots[slot] != EMPTY:
            ids[i] = first_id + slots[slot]
            continue
        first = first if strangers else i
        strangers += 1
        if num_oov_buckets > 0:
            ids[i] = first_bucket + np.int64(key_hash % np.uint64(num_oov_buckets))
        else:
            ids[i] = oov_id
    return strangers * STRANGER + first if strangers else OK


@njit(_INT(BYTES, _INTEGERS, _OUT), cache=True, nogil=True)
def parse_integers(data, starts, keys):  # type: ignore[no-untyped-def]
    """Writes the int64 that each line holds in decimal; returns OK, or the first line that holds none."""
    for line in range(keys.shape[0]):
        at = starts[line]
        end = at + line_length(data, starts, line)
        is_negative = at < end and data[at] == _MINUS
        at += is_negative
        if at == end:
            return line
        limit = _MAX + (_1 if is_negative else _0)
        value = _0
        while at < end:
            if data[at] < _ZERO or data[at] > _NINE:
                return line
            digit = np.uint64(data[at] - _ZERO)
            if value > (limit - digit) // _10:
                return line
            value = value * _10 + digit
            at += 1
        keys[line] = np.int64(_0 - value) if is_negative else np.int64(value)
    return OK


@njit(_U64(_INT), cache=True, nogil=True)
def _mixed(key):  # type: ignore[no-untyped-def]
    # Multiplication moves differences up, the shift brings them down to where the mask looks.
    word = np.uint64(key) * _MIX
    return word ^ word >> _32


@njit(_INT(_INTEGERS, _SLOTS), cache=True, nogil=True)
def index_integers(keys, slots):  # type: ignore[no-untyped-def]
    """Fills slots (EMPTY before) with keys; returns OK, or the first place of a key that was there before."""
    mask = slots.shape[0] - 1
    for i in range(keys.shape[0]):
        slot = np.int64(_mixed(keys[i]) & np.uint64(mask))
        while slots[slot] != EMPTY:
            if keys[slots[slot]] == keys[i]:
                return i
            slot = (slot + 1) & mask
        slots[slot] = i
    return OK


@njit(_U64(_INT), cache=True, nogil=True)
def fingerprint_of_digits(key):  # type: ignore[no-untyped-def]
    """Returns the fingerprint of an integer as it is written in decimal."""
    digits = np.empty(20, np.uint8)
    at = 20
    # The size of the smallest int64 is no int64.
    rest = _0 - np.uint64(key) if key < 0 else np.uint64(key)
    while True:
        at -= 1
        digits[at] = np.uint8(_ZERO + np.int64(rest % _10))
        rest //= _10
        if rest == _0:
            break
    if key < 0:
        at -= 1
        digits[at] = _MINUS
    return fingerprint64(digits, at, 20 - at)


@njit(_INT(_INTEGERS, _SLOTS, _INTEGERS, _INT, _INT, _INT, _INT, _OUT), cache=True, nogil=True)
def find_integers(keys, slots, sent, first_id, first_bucket, oov_id, num_oov_buckets, ids):  # type: ignore[no-untyped-def]
    """Writes and returns what find_strings does, for N sent keys; keys, slots: the vocabulary."""
    mask = slots.shape[0] - 1
    strangers = first = 0
    for i in range(ids.shape[0]):
        key = sent[i]
        slot = np.int64(_mixed(key) & np.uint64(mask))
        while slots[slot] != EMPTY and keys[slots[slot]] != key:
            slot = (slot + 1) & mask
        if slots[slot] != EMPTY:
            ids[i] = first_id + slots[slot]
            continue
        first = first if strangers else i
        strangers += 1
        if num_oov_buckets > 0:
            ids[i] = first_bucket + np.int64(fingerprint_of_digits(key) % np.uint64(num_oov_buckets))
        else:
            ids[i] = oov_id
    return strangers * STRANGER + first if strangers else OK
