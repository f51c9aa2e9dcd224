"""The kinds of inputs: each foreign model declares, by input name, which random values are valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]
# Largest number of ids in a row of a ragged input, and largest size of an inner dimension that the signature leaves
# open.
_MOST_IDS = 8
_MOST_INNER = 12


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Dtype and shape of a signature's input. dtype: object for strings; shape: -1 is any size, None any rank."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None


class Draw:
    """The source of random values for the inputs of one request.

    Args:
      num_rows: B, the rows of the request.
      scale: factor on the rows of the model's tables.
      bad_input: name of the input that gets one id outside its table; "" for none.
    """

    def __init__(self, rng: np.random.Generator, num_rows: int, scale: int, bad_input: str) -> None:
        self.rng, self.num_rows, self.scale, self.bad_input = rng, num_rows, scale, bad_input

    def shape(self, spec: InputSpec) -> tuple[int, ...]:
        """Returns the shape of an input: as in the signature, with B rows, and with 1 to 12 for an open inner size."""
        if spec.shape is None:
            return (self.num_rows,)
        inner = [size if size >= 0 else int(self.rng.integers(1, _MOST_INNER + 1)) for size in spec.shape[1:]]
        if not spec.shape:
            return ()
        return (self.num_rows if spec.shape[0] < 0 else spec.shape[0], *inner)

    def ids(self, name: str, low: int, size: int, count: int) -> Array:
        """Returns random ids: over the table, all equal, near its start, or with its first and last; one may be bad."""
        high = low + size * self.scale
        style = self.rng.integers(4)
        ids = self.rng.integers(low, min(high, low + 5) if style == 2 else high, count)
        if count and style == 1:
            ids[:] = ids[0]
        if count and style == 3:
            ids[0], ids[-1] = low, high - 1
        if count and name and name == self.bad_input:
            ids[self.rng.integers(count)] = self.rng.choice([low - 1, high, high + 1000])
        return ids

    def row_lengths(self) -> Array:
        """Returns a random number of ids for each row; the first, a middle, the last or all rows may be empty."""
        lengths = self.rng.integers(0, _MOST_IDS + 1, self.num_rows)
        style = self.rng.integers(8)
        if self.num_rows and style < 4:
            lengths[[0, self.num_rows // 2, -1][style % 3]] = 0
        if style == 7 and self.rng.integers(3) == 0:
            lengths[:] = 0
        return lengths


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of values that a model's input takes.

    has_ids: whether the input can hold an id outside the table.
    """

    @property
    def has_ids(self) -> bool:
        return False

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        """Returns random values for the input `name`, and for the inputs that describe it, such as its row splits."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Ids(Kind):
    """Kind of an input of ids of a table of `size` rows; the ids start at `low`, and the input may have any shape."""

    size: int
    low: int = 0

    @property
    def has_ids(self) -> bool:
        return True

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        shape = draw.shape(specs[name])
        ids = draw.ids(name, self.low, self.size, int(np.prod(shape)))
        return {name: ids.reshape(shape).astype(specs[name].dtype)}


@dataclass(frozen=True, slots=True)
class Padded(Kind):
    """Kind of an input of ids [B, K] with padding at the end of each row; if the padding is 0, valid ids start at 1."""

    size: int
    padding: int

    @property
    def has_ids(self) -> bool:
        return True

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        shape = draw.shape(specs[name])
        low = 1 if self.padding == 0 else 0
        ids = draw.ids(name, low, self.size - low, int(np.prod(shape))).reshape(shape)
        lengths = np.minimum(draw.row_lengths(), shape[1])
        if name != draw.bad_input:
            ids[np.arange(shape[1]) >= lengths[:, None]] = self.padding
        return {name: ids.astype(specs[name].dtype)}


@dataclass(frozen=True, slots=True)
class Ragged(Kind):
    """Kind of an input of ragged ids, [N]. splits, lengths, rowids, num_rows, weights: names of further inputs."""

    size: int
    splits: str = ""
    lengths: str = ""
    rowids: str = ""
    num_rows: str = ""
    weights: str = ""

    @property
    def has_ids(self) -> bool:
        return True

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        lengths = draw.row_lengths()
        total = int(lengths.sum())
        found = {
            name: draw.ids(name, 0, self.size, total),
            self.splits: np.cumsum([0, *lengths]),
            self.lengths: lengths,
            self.rowids: np.repeat(np.arange(len(lengths)), lengths),
            self.num_rows: np.array(len(lengths)),
            self.weights: _weights(draw, total),
        }
        return {key: array.astype(specs[key].dtype) for key, array in found.items() if key in specs}


@dataclass(frozen=True, slots=True)
class Sparse(Kind):
    """Kind of an input with a sparse tensor's ids. Its indices [N, 2], dense shape [2] and weights are other inputs."""

    size: int
    indices: str
    dense_shape: str
    weights: str = ""

    @property
    def has_ids(self) -> bool:
        return True

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        lengths = draw.row_lengths()
        total = int(lengths.sum())
        columns = np.concatenate([np.arange(n) for n in [0, *lengths]])
        found = {
            name: draw.ids(name, 0, self.size, total),
            self.indices: np.stack([np.repeat(np.arange(len(lengths)), lengths), columns], 1).reshape(-1, 2),
            self.dense_shape: np.array([len(lengths), max(1, lengths.max(initial=0))]),
            self.weights: _weights(draw, total),
        }
        return {key: array.astype(specs[key].dtype) for key, array in found.items() if key in specs}


@dataclass(frozen=True, slots=True)
class Words(Kind):
    """Kind of an input of strings: prefix0 to prefix<size - 1>, which vocabulary() makes, and some unknown strings."""

    prefix: str
    size: int

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        shape = draw.shape(specs[name])
        count = int(np.prod(shape))
        words = np.array([f"{self.prefix}{i}".encode() for i in draw.ids("", 0, self.size, count)], object)
        unknown = np.array([b"", b"no such word", "größer".encode(), f"{self.prefix}-1".encode(), b"0"], object)
        replaced = draw.rng.random(count) < draw.rng.choice([0, 0.1, 0.5])
        words[replaced] = draw.rng.choice(unknown, int(replaced.sum()))
        return {name: words.reshape(shape)}


@dataclass(frozen=True, slots=True)
class Keys(Kind):
    """Kind of an input of integer keys: 10, 20, ... 10 * size are in the vocabulary; some other keys are not."""

    size: int

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        shape = draw.shape(specs[name])
        keys = (draw.ids("", 1, self.size, int(np.prod(shape))) * 10).reshape(shape)
        replaced = draw.rng.random(shape) < draw.rng.choice([0, 0.1, 0.5])
        return {name: np.where(replaced, keys + draw.rng.integers(-10, 5, shape), keys).astype(specs[name].dtype)}


@dataclass(frozen=True, slots=True)
class Numbers(Kind):
    """Kind of an input of normally distributed numbers or, if its dtype is an integer type, of integers from 0 to 9."""

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        shape, dtype = draw.shape(specs[name]), specs[name].dtype
        is_whole = np.issubdtype(dtype, np.integer)
        numbers = draw.rng.integers(0, 10, shape) if is_whole else draw.rng.standard_normal(shape)
        return {name: np.asarray(numbers).astype(dtype)}


@dataclass(frozen=True, slots=True)
class Examples(Kind):
    """Kind of an input of serialized tf.Examples; features: name of an int64 field -> number of different ids."""

    features: Mapping[str, int]

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        import tensorflow as tf

        lists = {
            key: [draw.ids("", 0, size, n).tolist() for n in draw.row_lengths()] for key, size in self.features.items()
        }
        examples = []
        for row in range(draw.num_rows):
            example = tf.train.Example()
            for key, rows in lists.items():
                example.features.feature[key].int64_list.value.extend(rows[row])
            examples.append(example.SerializeToString())
        return {name: np.array(examples, object)}


def vocabulary(prefix: str, size: int) -> list[str]:
    """Returns the vocabulary from which the kind Words draws strings."""
    return [f"{prefix}{i}" for i in range(size)]


def _weights(draw: Draw, count: int) -> Array:
    # Some weights are 0 or negative, because combiners treat such weights differently.
    return draw.rng.choice(np.array([0.5, 1.0, 2.0, 0.25, 1.5, 0.3, 0.0, -1.0]), count)
