"""Makes probe requests, on which two different lookups give different rows, and compares the rows of two lookups.

Two computations of a feature that agree on these requests are taken for the same. The requests' rows are random, so
that any other sum of them would differ. Their ids and weights include each number that the graph compares ids or
weights with, and that number's neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from service.artifact.manifest import LookupFeature
from service.types import Array, SignatureSpec, Tensors, TensorSpec

# Row lengths up to this are in the probes of each feature.
_SHORT = 9
ROW_LENGTHS = (
    tuple(range(_SHORT + 4)),
    (0,),
    (1,),
    (3, 0, 1, 2),
    (0, 0, 5, 1, 9, 0),
    (40, 2, 0, 17, 1),
    (0, 0),
    (8, 16, 24, 9),
)
_MOST_IDS = 400
# Largest number with which a graph may compare row lengths, so that rows of this length are tried on both sides of it.
MOST_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class Constants:
    """The values that the constants in a part of a graph hold: integers, floating-point numbers, and strings.

    texts: also the patterns of regular expressions. sizes: the integers of layout.
    are_compared: whether the graph decides by sizes, so that several of them may have to meet in one request.
    """

    integers: tuple[int, ...]
    floats: tuple[float, ...]
    texts: tuple[bytes, ...] = ()
    sizes: tuple[int, ...] = ()
    are_compared: bool = False


def requests(
    spec: SignatureSpec, feature: LookupFeature, vocabulary_size: int, constants: Constants, keys: Array | None = None
) -> Iterator[dict[str, Array]]:
    """Yields probe requests: one feature gets ids and weights at or next to limits, such as the table's size; other
    inputs get random values.

    Args:
      keys: keys of the feature's vocabulary; the requests hold these and unknown keys in place of ids.
    """
    random = np.random.default_rng(17)
    dtype = spec.inputs[feature.ids].numpy_dtype
    ids = _ids(feature, vocabulary_size, constants, random, dtype) if keys is None else _keys(keys, constants, random)
    # One of the ids twice: a graph may read the rows of distinct ids.
    ids = np.append(ids, ids[:1])
    if feature.row_splits is None:
        yield _filled(spec, {feature.ids: ids}, ids.size, random)
        yield _filled(spec, {feature.ids: ids[:1]}, 1, random)
        yield _filled(spec, {feature.ids: ids[:0]}, 0, random)
        for size in beside(constants.sizes):
            # A known key has a row of its own, so that each order of the rows shows.
            some = np.resize(random.permutation(ids if keys is None or not keys.size else keys), size)
            yield _filled(spec, {feature.ids: some}, size, random)
        return
    batches = [list(lengths) for lengths in ROW_LENGTHS]
    # Further probe requests have each of the chosen ids in a row of its own, then three ids in each row, then all ids
    # in one row.
    batches += [[1] * ids.size, [3] * (ids.size // 3), [0, ids.size]]
    batches += batches_beside(constants.sizes, in_pairs=constants.are_compared)
    dropped = _dropped(feature, keys)
    for lengths in batches:
        chosen = ids if sum(lengths) == ids.size else random.choice(ids, sum(lengths))
        own = {feature.ids: chosen, feature.row_splits: np.cumsum([0, *lengths])}
        for weights in _weights(spec, feature, chosen.size, constants, random):
            yield _filled(spec, own | weights, len(lengths), random)
        for left_out in all_but_one(lengths) if constants.are_compared and dropped is not None else ():
            few = own | {feature.ids: np.where(left_out, dropped, chosen)}
            for weights in _weights(spec, feature, chosen.size, constants, random):
                yield _filled(spec, few | weights, len(lengths), random)


def beside(constants: Iterable[int]) -> list[int]:
    """Returns the sizes that constants of layout name, from the start or the end, and the numbers next to them.

    Named are also the sums and differences of two constants.
    """
    few = {abs(constant) for constant in constants if abs(constant) <= MOST_LENGTH}
    return _near(few | {size for a in few for b in few for size in (a + b, abs(a - b)) if size <= MOST_LENGTH})


def batches_beside(constants: Collection[int], *, in_pairs: bool) -> list[list[int]]:
    """Returns row lengths of requests in which each size that constants name counts something.

    Sizes up to those of ROW_LENGTHS are left out.

    Args:
      in_pairs: whether sizes are compared, which may only be small ones: each two then meet in one request.
    """
    named = [size for size in beside(constants) if size > _SHORT]
    long = [[size + d for d in range(-2, 3)] for size in named]
    alone = [lengths for size in named for lengths in _lengths_of_size(size)]
    small = [[*lengths] for rows in range(4) for lengths in product(range(4), repeat=rows)] if in_pairs else []
    return [*long, *alone, *small]


def _near(sizes: Iterable[int]) -> list[int]:
    return sorted({size + d for size in sizes for d in (-1, 0, 1) if size <= MOST_LENGTH} - {-1})


def all_but_one(lengths: Sequence[int]) -> tuple[Array, Array]:
    """Returns which ids are not the last of their row, and which are not the first, [N] bool each."""
    filled = np.array([length for length in lengths if length], np.int64)
    ends = np.cumsum(filled)
    places = np.arange(filled.sum())
    return ~np.isin(places, ends - 1), ~np.isin(places, ends - filled)


def _lengths_of_size(size: int) -> list[list[int]]:
    """Returns row lengths of requests in which a size counts the ids of a row, the rows, the ids, or the empty rows.

    Only rows of several ids tell a sum from a mean, and only empty rows show their vector.
    """
    mixed = [(2, 0, 1, 3)[row % 4] for row in range(size - 1)]
    return [[size], [1] * size, [size, 1, 0, size], [*mixed, 0], [2, 0, 1] * (size // 3) + [size % 3], [0] * size + [2]]


def has_same_bits(wanted: Array, found: Array) -> bool:
    """Says whether two arrays have the same dtype, shape and bits; any NaN equals any other NaN."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if wanted.dtype.kind not in "fV":
        return np.array_equal(found, wanted)
    bits = f"u{wanted.dtype.itemsize}"
    same = np.ascontiguousarray(found).view(bits) == np.ascontiguousarray(wanted).view(bits)
    return bool((same | (np.isnan(found) & np.isnan(wanted))).all())


def is_same_sum(feature: LookupFeature, inputs: Tensors, wanted: Array, found: Array) -> bool:
    """Says whether two lookup answers are equal up to the rounding of sums that were added in different orders.

    n numbers added up in two orders differ by at most 2 (n - 1) u sum|x|, u being half the distance from 1 to the next
    number (Higham, Accuracy and Stability of Numerical Algorithms, 4.2); weighting and dividing add three roundings.
    Single rows are copied, so they must be equal.
    """
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if feature.combiner is None and feature.max_norm is None:
        return np.array_equal(found, wanted)
    is_nan = np.isnan(wanted)
    if not wanted.size or not np.array_equal(np.isnan(found), is_nan):
        return not wanted.size
    if feature.max_norm is not None:
        # The rounding error that max_norm adds: a norm is a rounded sum of D squares, and each number of the vector is
        # divided by this norm.
        largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)) + feature.max_norm
        norm_error = (wanted.shape[-1] + 4) * np.finfo(np.float32).eps * largest
    else:
        norm_error = 0.0
    if feature.combiner is None:
        return bool((np.abs(found - wanted) <= norm_error).all())
    # The row splits are cut to the number of the answer's rows, because the answer may lack empty rows at the end
    # (trailing_empty_rows is "cut").
    splits = inputs[feature.row_splits or ""][: len(wanted) + 1]
    lengths = np.diff(splits)
    weights = inputs.get(feature.weights or "", np.empty(0))
    # The bound on the rounding error is doubled, because a mean divides its rounding error by the sum of its weights,
    # which may be less than 1.
    # A weight that is no finite number makes sums that are none, either, or leaves its id out.
    counted = np.where(np.isfinite(weights), np.abs(weights), 0)
    sizes = np.add.reduceat(np.append(counted, 0), splits[:-1]) * 2 if weights.size else 2.0 * lengths
    sizes = sizes[: len(wanted)]
    sums = np.maximum(sizes, 1.0) * max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)), 1e-30)
    most = (lengths + 2) * np.finfo(np.float32).eps * sums + norm_error * np.maximum(sizes, 1.0)
    with np.errstate(invalid="ignore"):
        return bool((is_nan | (found == wanted) | (np.abs(found - wanted) <= most[:, None])).all())


def _dropped(feature: LookupFeature, keys: Array | None) -> Any:
    """Returns an id or key that a lookup may leave out; None if it leaves none out."""
    if keys is not None:
        return -(2**61) if keys.dtype.kind == "i" else b"no such key at all"
    return -1 if feature.on_bad_id in ("drop", "drop_negative") else None


def _ids(
    feature: LookupFeature, size: int, constants: Constants, random: np.random.Generator, dtype: np.dtype[Any] | None
) -> Array:
    limits = np.iinfo(np.int64 if dtype is None or dtype.kind not in "iu" else dtype)
    near = {n + d for n in (*constants.integers, 0, size, feature.default_row) for d in (-1, 0, 1)}
    telling = np.array(sorted(n for n in near if limits.min < n < limits.max), np.int64)
    inside = (telling >= 0) & (telling < size)
    if feature.on_bad_id == "error":
        telling = telling[inside]
    elif feature.on_bad_id == "drop_negative":
        telling = telling[telling < size]
    elif feature.on_bad_id == "wrap":
        telling = telling[(telling >= -size) & (telling < size)]
    else:
        telling = np.concatenate([telling, [limits.min, limits.max]])
    ids = np.concatenate([telling[:_MOST_IDS], random.integers(0, size, 60)])
    return random.permutation(ids)


def _keys(keys: Array, constants: Constants, random: np.random.Generator) -> Array:
    if keys.dtype.kind == "i":
        near = {n + d for n in (0, *constants.integers) for d in (-1, 0, 1)}
        others = [*near, *(keys[:50] + 1).tolist(), *random.integers(-(2**62), 2**62, 60).tolist()]
        return random.permutation(np.concatenate([keys, np.array(others, np.int64)]))
    texts = [b"", b" ", b"0", b"-1", b"\xc3\xa4", *(f"{n:x}".encode() for n in random.integers(0, 2**62, 60).tolist())]
    # Keys in another case, or with spaces or a NUL, show whether a graph ignores case or trims keys. The vocabulary
    # does neither, so the rows of such a graph for these keys differ from the lookup's.
    texts += near_texts(keys[:50].tolist(), constants.texts)
    return random.permutation(np.array([*keys.tolist(), *texts, None], object)[:-1])


def near_texts(known: Sequence[bytes], texts: Sequence[bytes]) -> list[bytes]:
    """Returns keys that a graph may treat apart: forms of known keys, and of the strings that the graph holds.

    Each of the latter may be a regular expression: its literal part is put before and into known keys, and so is each
    of its characters, also in place of a character that is no letter or digit.
    """
    found: list[bytes] = []
    for text in (*known, *texts):
        found += [text, text[:-1], text[1:], text + b"x", b"x" + text, text + b" ", b" " + text, text + b"\0"]
        found += [text.upper(), text.lower(), text.swapcase()]
    for text in texts:
        literal = re.sub(rb"[\^$?*+()\[\]\\|]", b"", text)
        parts = [literal, *(bytes([char]) for char in sorted(set(literal)))] if literal else []
        for key in (b"ab", *known[:3]):
            for part in parts:
                middle = len(key) // 2
                found += [part + key, key[:middle] + part + key[middle:]]
                found.append(part.join(re.split(rb"[^a-zA-Z0-9]", key)))
    return [*dict.fromkeys(found)]


def _weights(
    spec: SignatureSpec, feature: LookupFeature, count: int, constants: Constants, random: np.random.Generator
) -> Iterator[dict[str, Array]]:
    if feature.weights is None:
        yield {}
        return
    odd = (np.nan, np.inf, -np.inf, 1e-39)
    compared = np.array([*constants.floats, *np.negative(constants.floats)], np.float32)
    near = [np.nextafter(compared, np.float32(to)) for to in (-np.inf, np.inf)]
    telling = np.array([0, -1, 1, 2, 0.5, *odd, *compared, *near[0], *near[1]], np.float32)
    if spec.inputs[feature.weights].default is not None:
        # The default of weights is an empty array. Without a default, the core refuses it.
        yield {feature.weights: np.empty(0, np.float32)}
    yield {feature.weights: random.uniform(0.1, 2, count).astype(np.float32)}
    yield {feature.weights: random.choice(telling, count)}


def _filled(
    spec: SignatureSpec, own: Mapping[str, Array], num_rows: int, random: np.random.Generator
) -> dict[str, Array]:
    request = {name: np.asarray(array, spec.inputs[name].numpy_dtype) for name, array in own.items()}
    for name in sorted(spec.row_inputs - own.keys()):
        tensor = spec.inputs[name]
        shape = (num_rows, *(size or 2 for size in (tensor.shape or (None,))[1:]))
        request[name] = _random(shape, tensor, random)
    for names in spec.ragged_names:
        if names.values not in own:
            lengths = random.integers(0, 4, num_rows)
            splits = np.concatenate([[0], np.cumsum(lengths)])
            request[names.row_splits] = splits.astype(spec.inputs[names.row_splits].numpy_dtype)
            request[names.values] = _random((int(splits[-1]),), spec.inputs[names.values], random)
            if names.weights in spec.inputs:
                request[names.weights] = random.uniform(0, 1, int(splits[-1])).astype(np.float32)
    return request


def _random(shape: tuple[int, ...], tensor: TensorSpec, random: np.random.Generator) -> Array:
    dtype = tensor.numpy_dtype
    if dtype is None or dtype.kind == "O":
        return np.full(shape, b"", object)
    if dtype.kind == "f":
        return random.uniform(-1, 1, shape).astype(dtype)
    return random.integers(0, tensor.vocabulary_size or 2, shape).astype(dtype)
