"""Looks a request's ids up and writes the floats as JSON text: one compiled call for all features."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from service.direct import float_text, gather
from service.direct.memory import INTS_2D, entry_point, ints_2d_at, ints_at, octets_at, store_byte, words_at

# Columns of the parts of an answer, one row per feature: the text before its floats, where those are among all floats
# (bytes), how many vectors a row has (0: one, and not in a list), and how many floats a vector has.
TEXT_AT, TEXT_LENGTH, FLOATS_AT, VECTORS, DIM = range(5)
PART_COLUMNS = 5
# And three more rows, of text only: how an answer begins, how a row ends (by row only), how the answer ends.
HEAD, ROW_END, TAIL = range(3)
MORE_PARTS = 3

_UNUSUAL = -1
_INT = types.int64

_OPEN, _CLOSE, _COMMA = ord("["), ord("]"), ord(",")


@njit(_INT(_INT, _INT, _INT), cache=True, nogil=True)
def _vector(floats_at, dim, p):  # type: ignore[no-untyped-def]
    words = words_at(floats_at, dim)
    store_byte(p, _OPEN)
    for i in range(dim):
        p = float_text.write(np.uint64(words[i]), p + 1)
        if p < 0:
            return np.int64(_UNUSUAL)
        store_byte(p, _COMMA)
    if dim == 0:
        p += 1
    store_byte(p, _CLOSE)
    return p + 1


@njit(_INT(_INT, INTS_2D, _INT, _INT, _INT), cache=True, nogil=True)
def _row(floats_at, parts, f, row, p):  # type: ignore[no-untyped-def]
    dim = parts[f, DIM]
    vectors = parts[f, VECTORS]
    if vectors == 0:
        return _vector(floats_at + parts[f, FLOATS_AT] + 4 * row * dim, dim, p)
    store_byte(p, _OPEN)
    for v in range(vectors):
        p = _vector(floats_at + parts[f, FLOATS_AT] + 4 * (row * vectors + v) * dim, dim, p + 1)
        if p < 0:
            return np.int64(_UNUSUAL)
        store_byte(p, _COMMA)
    store_byte(p, _CLOSE)
    return p + 1


@njit(_INT(_INT, INTS_2D, _INT, _INT), cache=True, nogil=True)
def _text(text_at, parts, f, p):  # type: ignore[no-untyped-def]
    length = parts[f, TEXT_LENGTH]
    octets_at(p, length)[:] = octets_at(text_at + parts[f, TEXT_AT], length)
    return p + length


@njit(_INT(_INT, INTS_2D, _INT, _INT, _INT, types.boolean), cache=True, nogil=True)
def _write(floats_at, parts, text_at, rows, out_at, is_by_row):  # type: ignore[no-untyped-def]
    # Returns the text's length, or -1 where a float is NaN or infinite.
    num_features = parts.shape[0] - MORE_PARTS
    p = _text(text_at, parts, num_features + HEAD, out_at)
    if is_by_row:
        for row in range(rows):
            if row:
                store_byte(p, _COMMA)
                p += 1
            for f in range(num_features):
                p = _row(floats_at, parts, f, row, _text(text_at, parts, f, p))
                if p < 0:
                    return np.int64(_UNUSUAL)
            p = _text(text_at, parts, num_features + ROW_END, p)
    else:
        for f in range(num_features):
            p = _text(text_at, parts, f, p)
            store_byte(p, _OPEN)
            for row in range(rows):
                p = _row(floats_at, parts, f, row, p + 1)
                if p < 0:
                    return np.int64(_UNUSUAL)
                store_byte(p, _COMMA)
            store_byte(p, _CLOSE)
            p += 1
    return _text(text_at, parts, num_features + TAIL, p) - out_at


@njit(_INT(*[_INT] * 6), cache=True, nogil=True)
def _write_at(floats_at, parts_at, num_features, rows, out_at, is_by_row):  # type: ignore[no-untyped-def]
    parts = ints_2d_at(parts_at, num_features + MORE_PARTS, PART_COLUMNS)
    return _write(floats_at, parts, parts_at, rows, out_at, is_by_row != 0)


@njit(_INT(*[_INT] * 15), cache=True, nogil=True)
def _answer(  # type: ignore[no-untyped-def]
    data_at,
    found_at,
    plan_at,
    num_features,
    scratch_at,
    floats_at,
    shape_at,
    parts_at,
    text_at,
    rows,
    out_at,
    is_by_row,
    new_counts_at,
    counts_at,
    num_counts,
):
    new_counts = ints_at(new_counts_at, num_counts)
    new_counts[:] = 0
    done = gather.compiled_answer(
        *(data_at, found_at, plan_at, num_features, scratch_at),
        *(floats_at, shape_at, rows, 0, new_counts_at),
    )
    if done != gather.DONE:
        return np.int64(_UNUSUAL)
    parts = ints_2d_at(parts_at, num_features + MORE_PARTS, PART_COLUMNS)
    length = _write(floats_at, parts, text_at, rows, out_at, is_by_row != 0)
    if length >= 0:
        # What the general path answers after all, it counts too.
        counts = ints_at(counts_at, num_counts)
        for i in range(num_counts):
            counts[i] += new_counts[i]
    return length


# Writes floats without any text: for tests, and for what comes without a table.
write = entry_point(_write_at)
# Looks up and writes; returns the answer's length, or -1 where the request must be looked at in another way.
#
# Args, all int64:
#   data_at, found_at, plan_at, num_features, scratch_at, rows: as in gather.answer.
#   floats_at, shape_at: as out_at and shape_at there; the shape is of floats only.
#   parts_at: of [F + MORE_PARTS, PART_COLUMNS] int64.
#   text_at: of all texts.
#   out_at: of the answer.
#   is_by_row: whether each row's features stand together, in place of each feature's rows.
#   new_counts_at: of as many as counts, written.
#   counts_at, num_counts: as in gather.answer, and how many integers they are.
answer = entry_point(_answer)
