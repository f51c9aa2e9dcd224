"""Finds what a JSON body of a lookup says without building any object: one compiled pass over its bytes.

Plain is an object with one of "features", "inputs" and "instances", perhaps with "signature_name", and nothing else.
Names are printable ASCII without escapes, ids integers of at most 18 digits. All else, and every fault, is the general
path's to read and to word.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from service.direct.json_tokens import IS_WIDE, UNUSUAL, after, integer, integers, skip, string
from service.direct.memory import INTS, INTS_2D, OCTETS, entry_point, ints_2d_at, ints_at, octets_at
from service.direct.scan import (
    COLUMNS,
    CONTENT,
    DTYPE,
    INT64,
    KIND,
    MAX_INPUTS,
    NAME_AT,
    SIZE,
    SKELETON_BYTES,
    VALUES_AT,
    VALUES_LENGTH,
)

# Each member of the object of ids takes two rows: its ids, and where its rows of ids begin and end.
MAX_MEMBERS = MAX_INPUTS // 2
# A column of ours, and what row 0 tells beside IS_WIDE, where signature_name begins and how long it is (-1: it is not
# there).
NAME_LENGTH = 1
FORM, MEMBERS = 2, 4
# Length of a key at most, and where the other parts of what scan returns begin.
MAX_KEY, WIDE_SHIFT, ROWS_SHIFT = SKELETON_BYTES, 16, 17
SINGLE, RAGGED = 0, 1
# Forms: which member holds the ids.
FEATURES, INPUTS, INSTANCES = range(3)

_NO_SPLITS = -1

_INT = types.int64

_COLON, _COMMA = ord(":"), ord(",")
_OPEN_LIST, _CLOSE_LIST, _OPEN, _CLOSE = ord("["), ord("]"), ord("{"), ord("}")


def capacity(num_bytes: int) -> int:
    """Returns how many integers scan may write for a body of so many bytes, each of four times."""
    # An id, a row or a list takes two bytes or more, and each list has one end more than it has rows.
    return num_bytes + MAX_MEMBERS + 2


@njit(types.void(INTS_2D, _INT, _INT, _INT), cache=True, nogil=True)
def _describe(found, k, begin, count):  # type: ignore[no-untyped-def]
    # Makes row k of found an input of `count` integers, the first of them the one at `begin`.
    found[k, DTYPE] = INT64
    found[k, KIND] = CONTENT
    found[k, SIZE] = count
    found[k, VALUES_AT] = 8 * begin
    found[k, VALUES_LENGTH] = 8 * count


@njit(_INT(OCTETS, _INT, INTS, _INT, INTS_2D), cache=True, nogil=True)
def _columns(data, at, ints, size, found):  # type: ignore[no-untyped-def]
    # Reads an object of lists that begins at `at`; returns where it ends, or -1. Ids lie in the first quarter of ints,
    # splits in the second.
    at = after(data, at, _OPEN)
    members = 0
    ids = np.int64(0)
    splits = size
    while at > 0:
        quote = string(data, at)
        if quote < 0 or members == MAX_MEMBERS:
            break
        k = 1 + 2 * members
        found[k, NAME_AT] = at + 1
        found[k, NAME_LENGTH] = quote - at - 1
        at = after(data, quote + 1, _COLON)
        at = after(data, at, _OPEN_LIST) if at > 0 else np.int64(UNUSUAL)
        if at < 0 or at >= len(data):
            break
        first_id = ids
        if data[at] != _OPEN_LIST:
            ids, at = integers(data, at, ints, ids, found)
            found[k + 1, SIZE] = _NO_SPLITS
        else:
            first_split = splits
            ints[splits] = 0
            splits += 1
            while at > 0:
                at = after(data, at, _OPEN_LIST)
                if at < 0:
                    break
                ids, at = integers(data, at, ints, ids, found)
                if at < 0:
                    break
                ints[splits] = ids - first_id
                splits += 1
                at = skip(data, at)
                if at < len(data) and data[at] == _CLOSE_LIST:
                    at += 1
                    break
                at = after(data, at, _COMMA)
            _describe(found, k + 1, first_split, splits - first_split)
        if at < 0:
            break
        _describe(found, k, first_id, ids - first_id)
        members += 1
        at = skip(data, at)
        if at < len(data) and data[at] == _CLOSE:
            found[0, MEMBERS] = members
            return at + 1
        at = after(data, at, _COMMA)
    return np.int64(UNUSUAL)


@njit(types.boolean(OCTETS, _INT, _INT, _INT), cache=True, nogil=True)
def _is_same(data, one, other, length):  # type: ignore[no-untyped-def]
    for i in range(length):
        if data[one + i] != data[other + i]:
            return False
    return True


@njit(_INT(OCTETS, _INT, INTS, _INT, INTS_2D), cache=True, nogil=True)
def _rows(data, at, ints, size, found):  # type: ignore[no-untyped-def]
    # Reads a list of objects that begins at `at`; returns where it ends, or -1. Row by row ids lie in the third quarter
    # of ints and in the fourth where those of each member begin; at the end they are brought together by member.
    at = after(data, at, _OPEN_LIST)
    members = 0
    rows = 0
    ids = 2 * size
    begins = 3 * size
    is_over = False
    while at > 0 and not is_over:
        at = after(data, at, _OPEN)
        member = 0
        while at > 0:
            quote = string(data, at)
            if quote < 0 or member == MAX_MEMBERS:
                return np.int64(UNUSUAL)
            k = 1 + 2 * member
            length = quote - at - 1
            value_at = after(data, quote + 1, _COLON)
            if value_at < 0 or value_at >= len(data):
                return np.int64(UNUSUAL)
            is_list = data[value_at] == _OPEN_LIST
            if rows == 0:
                found[k, NAME_AT] = at + 1
                found[k, NAME_LENGTH] = length
                found[k + 1, SIZE] = 0 if is_list else _NO_SPLITS
                members += 1
            elif (
                member >= members
                or found[k, NAME_LENGTH] != length
                or not _is_same(data, found[k, NAME_AT], at + 1, length)
                or is_list != (found[k + 1, SIZE] != _NO_SPLITS)
            ):
                return np.int64(UNUSUAL)
            ints[begins] = ids
            begins += 1
            if is_list:
                ids, at = integers(data, value_at + 1, ints, ids, found)
            else:
                value, at = integer(data, value_at)
                if value != np.int64(np.int32(value)):
                    found[0, IS_WIDE] = 1
                ints[ids] = value
                ids += 1
            if at < 0:
                return np.int64(UNUSUAL)
            member += 1
            at = skip(data, at)
            if at < len(data) and data[at] == _CLOSE:
                at += 1
                break
            at = after(data, at, _COMMA)
        if at < 0 or member != members:
            return np.int64(UNUSUAL)
        rows += 1
        at = skip(data, at)
        if at < len(data) and data[at] == _CLOSE_LIST:
            at += 1
            is_over = True
        else:
            at = after(data, at, _COMMA)
    if at < 0 or not is_over:
        return np.int64(UNUSUAL)
    ints[begins] = ids
    found[0, MEMBERS] = members
    to = np.int64(0)
    splits = size
    for member in range(members):
        k = 1 + 2 * member
        first, first_split = to, splits
        for row in range(rows):
            here = 3 * size + row * members + member
            for i in range(ints[here], ints[here + 1]):
                ints[to] = ints[i]
                to += 1
            if found[k + 1, SIZE] != _NO_SPLITS:
                ints[splits + row + 1] = to - first
        _describe(found, k, first, to - first)
        if found[k + 1, SIZE] != _NO_SPLITS:
            ints[splits] = 0
            splits += rows + 1
            _describe(found, k + 1, first_split, rows + 1)
    return at


@njit(types.boolean(OCTETS, _INT, _INT, types.Bytes(types.uint8, 1, "C", readonly=True)), cache=True, nogil=True)
def _reads(data, at, quote, word):  # type: ignore[no-untyped-def]
    # Whether the string that begins at `at` is the word.
    if quote - at - 1 != len(word):
        return False
    for i in range(len(word)):
        if data[at + 1 + i] != word[i]:
            return False
    return True


@njit(_INT(OCTETS, INTS, _INT, INTS_2D), cache=True, nogil=True)
def _read(data, ints, size, found):  # type: ignore[no-untyped-def]
    found[0, NAME_LENGTH] = -1
    found[0, FORM] = -1
    found[0, IS_WIDE] = 0
    at = after(data, 0, _OPEN)
    members = np.int64(UNUSUAL)
    while at > 0:
        quote = string(data, at)
        if quote < 0:
            break
        key = at
        at = after(data, quote + 1, _COLON)
        if at < 0:
            break
        if _reads(data, key, quote, b"signature_name"):
            end = string(data, at)
            if end < 0 or found[0, NAME_LENGTH] >= 0:
                break
            found[0, NAME_AT] = at + 1
            found[0, NAME_LENGTH] = end - at - 1
            at = end + 1
        elif found[0, FORM] >= 0:
            break
        else:
            if _reads(data, key, quote, b"features"):
                found[0, FORM] = FEATURES
            elif _reads(data, key, quote, b"inputs"):
                found[0, FORM] = INPUTS
            elif _reads(data, key, quote, b"instances"):
                found[0, FORM] = INSTANCES
            else:
                break
            if found[0, FORM] == INSTANCES:
                at = _rows(data, at, ints, size, found)
            else:
                at = _columns(data, at, ints, size, found)
            if at < 0:
                break
            members = found[0, MEMBERS]
        at = skip(data, at)
        if at < len(data) and data[at] == _CLOSE:
            return members if skip(data, at + 1) == len(data) else np.int64(UNUSUAL)
        at = after(data, at, _COMMA)
    return np.int64(UNUSUAL)


@njit(_INT(OCTETS, INTS_2D, OCTETS), cache=True, nogil=True)
def _key(data, found, key):  # type: ignore[no-untyped-def]
    # Writes what requests of one kind have in common; returns its length, or -1 where there is no room for it.
    n = 1
    key[0] = found[0, FORM]
    for member in range(-1, found[0, MEMBERS]):
        k = max(1 + 2 * member, 0)
        length = max(found[k, NAME_LENGTH], 0)
        if n + length + 1 > len(key):
            return np.int64(UNUSUAL)
        for i in range(length):
            key[n + i] = data[found[k, NAME_AT] + i]
        n += length
        key[n] = RAGGED if member >= 0 and found[k + 1, SIZE] != _NO_SPLITS else SINGLE
        n += 1
    return n


@njit(_INT(INTS_2D), cache=True, nogil=True)
def _common_rows(found):  # type: ignore[no-untyped-def]
    # Returns how many rows each member has, or 0 where they differ.
    rows = np.int64(-1)
    for member in range(found[0, MEMBERS]):
        splits = found[2 + 2 * member, SIZE]
        size = found[1 + 2 * member, SIZE] if splits == _NO_SPLITS else splits - 1
        if rows >= 0 and size != rows:
            return np.int64(0)
        rows = size
    return max(rows, np.int64(0))


@njit(_INT(*[_INT] * 6), cache=True, nogil=True)
def _scan(data_at, num_bytes, all_ints_at, size, found_at, key_at):  # type: ignore[no-untyped-def]
    data = octets_at(data_at, num_bytes)
    found = ints_2d_at(found_at, 1 + MAX_INPUTS, COLUMNS)
    if _read(data, ints_at(all_ints_at, 4 * size), size, found) < 0:
        return np.int64(UNUSUAL)
    length = _key(data, found, octets_at(key_at, MAX_KEY))
    if length < 0:
        return np.int64(UNUSUAL)
    return length | found[0, IS_WIDE] << WIDE_SHIFT | _common_rows(found) << ROWS_SHIFT


# Reads a body, and returns in one number what a request needs first, or -1 where it is not plain. That is, from below:
# 16 bits length of the key; a bit for ids beyond 32 bits; from ROWS_SHIFT on the rows that all members have, 0 where
# they differ.
#
# Args, all int64:
#   data_at, num_bytes: address and size of the body.
#   all_ints_at: of [4 * size] int64, written.
#   size: capacity(num_bytes) at least.
#   found_at: of [1 + MAX_INPUTS, COLUMNS] int64, written. Row 0: see FORM, MEMBERS and IS_WIDE; of member i row
#     1 + 2 i is its ids, and row 2 + 2 i its row splits, whose SIZE is -1 where it is a flat list.
#   key_at: of [MAX_KEY] uint8, written: the form; signature_name, and each member's name, followed by SINGLE or RAGGED.
scan = entry_point(_scan)
