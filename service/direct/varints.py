"""Packed varints to integers, several at a time.

Lengths of ids are as random as ids, and a wrong guess of a branch costs more than all arithmetic here; so does waiting
for where one ends before the next is looked at.

Source: protobuf's encoding, "Base 128 Varints".
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from service.direct.memory import INTS, bytes_below_128, first_bit, ints_at, octets_at, words_at

DONE, UNUSUAL = 0, -1

_INT, _WORD = types.int64, np.uint64
_MORE = _WORD(0x8080808080808080)
# The seven bits of each byte that count.
_SHORT = np.uint32(0x7F7F7F7F)
# What is read to find four: 16 bytes for where they end, and 4 from where the last begins.
_WINDOW = _WORD(20)
_ONE, _TWO, _FOUR, _SEVEN, _EIGHT = (_WORD(n) for n in (1, 2, 4, 7, 8))


@njit(nogil=True)
def _number(word, last):  # type: ignore[no-untyped-def]
    # The integer whose last byte is the lowest that is marked in last: its bits, then without each byte's first.
    word &= (last ^ (last - _ONE)) & ~_MORE
    word = (word & _WORD(0x007F007F007F007F)) | ((word & _WORD(0x7F007F007F007F00)) >> _ONE)
    word = (word & _WORD(0x00003FFF00003FFF)) | ((word & _WORD(0x3FFF00003FFF0000)) >> _TWO)
    return (word & _WORD(0x000000000FFFFFFF)) | ((word & _WORD(0x0FFFFFFF00000000)) >> _FOUR)


@njit(nogil=True)
def _short_number(at, more):  # type: ignore[no-untyped-def]
    # The integer that begins there and has up to three more bytes.
    word = words_at(at, 1)[0] & (_SHORT >> (np.uint32(24) - (np.uint32(more) << np.uint32(3))))
    word = (word & np.uint32(0x007F007F)) | ((word & np.uint32(0x7F007F00)) >> np.uint32(1))
    return _INT((word & np.uint32(0x00003FFF)) | ((word & np.uint32(0x3FFF0000)) >> np.uint32(2)))


@njit(_INT(_INT, _INT, INTS), cache=True, nogil=True)
def read_varints(address, num_bytes, out):  # type: ignore[no-untyped-def]
    """Writes as many integers as out has room for; DONE, or UNUSUAL where the bytes are not just as many.

    Args:
      address, num_bytes: of the bytes, of which none beyond is read.
      out: [N] int64, written; a number of more than 64 bits loses those above, as in protobuf.
    """
    octets = octets_at(address, num_bytes)
    end = _WORD(num_bytes)
    p = _WORD(0)
    n = out.shape[0]
    i = 0
    while i < n:
        if p + _WINDOW <= end and i + 4 <= n:
            # Nearly always four end within 16 bytes, and none has more than four.
            at = address + _INT(p)
            last = bytes_below_128(at)
            last_2 = last & (last - _ONE)
            last_3 = last_2 & (last_2 - _ONE)
            last_4 = last_3 & (last_3 - _ONE)
            if last_4 != _WORD(0):
                end_1, end_2, end_3, end_4 = first_bit(last), first_bit(last_2), first_bit(last_3), first_bit(last_4)
                more_2, more_3, more_4 = end_2 - end_1 - _ONE, end_3 - end_2 - _ONE, end_4 - end_3 - _ONE
                if end_1 | more_2 | more_3 | more_4 < _FOUR:
                    out[i] = _short_number(at, end_1)
                    out[i + 1] = _short_number(at + _INT(end_1) + 1, more_2)
                    out[i + 2] = _short_number(at + _INT(end_2) + 1, more_3)
                    out[i + 3] = _short_number(at + _INT(end_3) + 1, more_4)
                    i += 4
                    p += end_4 + _ONE
                    continue
        if p + _EIGHT <= end:
            word = _WORD(ints_at(address + _INT(p), 1)[0])
            last = ~word & _MORE
            if last != _WORD(0):
                second = last & (last - _ONE)
                out[i] = _INT(_number(word, last))
                i += 1
                length = first_bit(last) + _ONE
                # Nearly always two end here, and reading the second need not wait for where the first ends.
                if second != _WORD(0) and i < n:
                    out[i] = _INT(_number(word >> length, second >> length))
                    i += 1
                    length = first_bit(second) + _ONE
                p += length >> _WORD(3)
                continue
        value = _WORD(0)
        shift = _WORD(0)
        while True:
            if p >= end or shift > _WORD(63):
                return UNUSUAL
            byte = _WORD(octets[p])
            p += _ONE
            value |= (byte & _WORD(0x7F)) << shift
            if byte < _WORD(0x80):
                break
            shift += _SEVEN
        out[i] = _INT(value)
        i += 1
    return DONE if p == end else UNUSUAL
