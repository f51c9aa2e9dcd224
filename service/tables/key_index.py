"""Chooses the index over a vocabulary's keys: the native core's, or dict_index if the core is not built.

A native index is an int32 array of slots, a power of two in number: native/src/tables/key_index.rs fills it. The index
holds no keys: strings are in the lines of the mapped file, integers in one array. So an index takes some 15 bytes a key
beside the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from service.native_tables import NATIVE_TABLES
from service.tables import dict_index
from service.tables.dict_index import NO_EMPTY_KEY as NO_EMPTY_KEY
from service.tables.dict_index import OK as OK
from service.tables.dict_index import STRANGER as STRANGER

EMPTY = -1

_chosen: Any = NATIVE_TABLES or dict_index
count_lines, find_lines, line_length = _chosen.count_lines, _chosen.find_lines, _chosen.line_length
parse_integers, index_integers, find_integers = _chosen.parse_integers, _chosen.index_integers, _chosen.find_integers
index_strings, find_strings = _chosen.index_strings, _chosen.find_strings


def native_slots(size: int) -> Any:
    """Returns an empty hash table for the native core's index of a vocabulary with `size` keys."""
    # Between a third and two thirds of the hash table's slots stay empty, so that finding a key takes one or two slots.
    return np.full(1 << (size * 3 // 2).bit_length(), EMPTY, np.int32)


def new_dict(size: int) -> Any:
    """Returns an empty dict as the index of dict_index(); `size` is ignored, because a dict grows."""
    return {}


# Function that makes an empty index for a vocabulary of the given number of keys; index_strings or index_integers fills
# it.
new_index = native_slots if NATIVE_TABLES else new_dict
