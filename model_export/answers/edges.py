"""Chooses keys and ids at the edges of a graph: next to its constants, its vocabularies and the limits of dtypes.

A description of a lookup that is wrong for few keys is wrong for keys that the graph treats apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.graphs.signature_runner import constant_arrays
from service.graph.probes import near_texts
from service.types import Array

# Largest number of elements of a constant that is read, of bytes of a string, and of constants of one kind.
_MOST_ELEMENTS, _MOST_BYTES, _MOST_CONSTANTS = 8, 40, 64
# Number of a vocabulary's keys of which changed forms are made.
_CHANGED_KEYS = 6


@dataclass(frozen=True, slots=True)
class Constants:
    """The distinct integers and strings that a SavedModel's graph holds in small constants."""

    integers: tuple[int, ...] = ()
    strings: tuple[bytes, ...] = ()

    @staticmethod
    def of(artifact: Path) -> Constants:
        """Reads the constants of a SavedModel's {serve} graph and of all its functions."""
        integers: set[int] = set()
        strings: set[bytes] = set()
        for array in constant_arrays(artifact, _MOST_ELEMENTS):
            if array.dtype.kind in "iu":
                integers.update(int(number) for number in array.reshape(-1))
            elif array.dtype.kind == "O":
                strings.update(array.reshape(-1).tolist())
        texts = sorted((text for text in strings if len(text) <= _MOST_BYTES), key=len)
        # The largest integers and the shortest strings are taken: 0 and 1 are tried anyway, long texts are messages.
        return Constants(tuple(sorted(integers, key=abs)[-_MOST_CONSTANTS:]), tuple(texts[:_MOST_CONSTANTS]))


def edge_ids(size: int, dtype: Any, constants: Constants) -> Array:
    """Returns row numbers at and next to the limits of a table and of a dtype, and to the graph's constants."""
    is_whole = np.dtype(dtype).kind in "iu"
    # Integers up to 2^24 are exact in float32, in which Keras' default Input takes ids.
    lowest, highest = (np.iinfo(dtype).min, np.iinfo(dtype).max) if is_whole else (-(2**24), 2**24)
    near = {n + d for n in (0, size - 1, *constants.integers) for d in (-1, 0, 1)} | {lowest, highest}
    return np.array(sorted(n for n in near if lowest <= n <= highest), dtype)


def edge_keys(known: Sequence[bytes], constants: Constants) -> list[bytes]:
    """Returns string keys: some of the known ones, prefixes, suffixes and other cases of them, "", and the graph's."""
    texts = [b"", b" ", b"0", b"-1", b"nan", *near_texts([*known[:_CHANGED_KEYS], *known[-2:]], constants.strings)]
    return [*dict.fromkeys(texts)]


def edge_key_numbers(known: Iterable[int], constants: Constants) -> Array:
    """Returns integer keys: known ones and their neighbours, 0, -1, the limits of int64, and the graph's constants."""
    numbers = [*known]
    near = {n + d for n in (0, *numbers[:_CHANGED_KEYS], *numbers[-2:], *constants.integers) for d in (-1, 0, 1)}
    limits = np.iinfo(np.int64)
    inside = (n for n in near | {limits.min, limits.max} if limits.min <= n <= limits.max)
    return np.array(sorted(inside), np.int64)
