"""The kinds of inputs, by which a foreign model declares which random values are valid, and requests drawn by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from loadtest.foreign.frameworks import tf

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]
# Key of an input before a graph turns it into the row of a table.
Key = int | float | bytes
# Number of ids in a row of a ragged input: the largest in most requests, the largest in some, and that of a rare row.
_MOST_IDS, _MANY_IDS, _LONG_ROW = 8, 40, 1000
# Largest size of an inner dimension that the signature leaves open.
_MOST_INNER = 12
# Number of ids and words within the table that each input of a recommender gets.
_MORE_IDS = 60
# Keys that any model may treat apart from others, whatever its graph says.
_STRINGS = (
    *(b"", b"0", b"-1", b"nan", b"NaN", b"007", b" 7", b"7", b"1e3", b"null", b"None", b"[PAD]", b"[UNK]", b"\xff\xfe"),
    *("größer".encode(), "ÄÖÜ".encode(), b"\0", b"a\0b", b"\n", b"a\n", b"tab\tand", b"no such key", b"No Such KEY"),
    *(b"x" * 70, b"18446744073709551616", b"9223372036854775807", b"-9223372036854775808"),
    *(b"https://a.org/b", b"a-b", b"c.d"),
)
_INTEGERS = (
    *(-1, -2, 2, 3, 5, 7, 10, 99, 100, 1000, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, -(2**31), 2**40, 2**53 + 1),
)
_FLOATS = (0.0, -0.0, 0.5, -0.5, 0.999, 1.0, 2.9999, -1.0, 16777217.0, 2.0**31, 2.0**32 + 512, 1e10, -1e10, 1e30)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Dtype and shape of a signature's input. dtype: object for strings; shape: -1 is any size, None any rank."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Draw:
    """The source of random values for the inputs of one request.

    num_rows: B, the rows of the request.
    bad_input: name of the input that gets one id outside its table; "" for none.
    number: number of the request; inputs with a list of keys send all of its keys in the first requests.
    only: input name -> the key to send alone, instead of random keys.
    """

    rng: np.random.Generator
    num_rows: int
    bad_input: str
    number: int = 0
    only: Mapping[str, Key] = field(default_factory=dict)

    def shape(self, spec: InputSpec) -> tuple[int, ...]:
        """Returns the shape of an input: as in the signature, with B rows, and with 1 to 12 for an open inner size."""
        if spec.shape is None:
            return (self.num_rows,)
        inner = [size if size >= 0 else int(self.rng.integers(1, _MOST_INNER + 1)) for size in spec.shape[1:]]
        if not spec.shape:
            return ()
        return (self.num_rows if spec.shape[0] < 0 else spec.shape[0], *inner)

    def row_lengths(self) -> Array:
        """Returns a random number of ids for each row; the first, a middle, the last or all rows may be empty."""
        if self.only:
            return np.ones(self.num_rows, np.int64)
        style = self.rng.integers(8)
        lengths = self.rng.integers(0, (_MANY_IDS if style == 6 else _MOST_IDS) + 1, self.num_rows)
        if self.num_rows and style == 5 and self.rng.integers(8) == 0:
            lengths[self.rng.integers(self.num_rows)] = _LONG_ROW
        if self.num_rows and style < 4:
            lengths[[0, self.num_rows // 2, -1][style % 3]] = 0
        if style == 7 and self.rng.integers(3) == 0:
            lengths[:] = 0
        return lengths


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of values that a model's input takes.

    has_ids: whether the input can hold a key that TensorFlow refuses.
    """

    has_ids: ClassVar[bool] = False

    def judged(self, name: str, is_answered: Callable[[Mapping[str, Key]], bool]) -> Kind:
        return self

    def row(self, name: str, tensors: Tensors, number: int) -> str:
        array = tensors[name]
        return f"{name}={array[number : number + 1].tolist()!r}"

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        """Returns random values for the input `name`, and for the inputs that describe it, such as its row splits."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Numbers(Kind):
    """Kind of an input of normally distributed numbers."""

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        numbers = draw.rng.standard_normal(draw.shape(specs[name]))
        return {name: np.asarray(numbers).astype(specs[name].dtype)}


def places(lengths: Array) -> tuple[Array, Array]:
    """Returns the indices [N, 2] of sparse ids and their dense shape [2], given the number of ids of each row."""
    columns = np.concatenate([np.arange(n) for n in [0, *lengths]])
    indices = np.stack([np.repeat(np.arange(len(lengths)), lengths), columns], 1).reshape(-1, 2)
    return indices, np.array([len(lengths), max(1, lengths.max(initial=0))])


def vocabulary(prefix: str, size: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(size)]


def _weights(draw: Draw, count: int) -> Array:
    # Some weights are 0, negative or tiny, because combiners treat such weights differently.
    return draw.rng.choice(np.array([0.5, 1.0, 2.0, 0.25, 1.5, 0.3, 0.0, -1.0, 1e-7, 1e-15]), count)


def edge_keys(keys: Iterable[Key], dtype: str) -> tuple[Key, ...]:
    """Returns the keys that an input of this dtype can hold, with those that every model is asked: edges of the dtype.

    >>> edge_keys([7, 300, b"a"], "uint8")[:5]
    (7, 0, 1, 255, 254)
    """
    if dtype == "string":
        return tuple(dict.fromkeys(key for key in (*keys, *_STRINGS) if isinstance(key, bytes)))
    numbers = [key for key in keys if not isinstance(key, bytes)]
    if dtype.startswith("float"):
        floats = [near for key in numbers for near in (float(key), key + 0.5, key - 0.25)]
        return tuple(dict.fromkeys(key for key in (*floats, *_FLOATS) if abs(key) < 3e38))
    info = np.iinfo(dtype)
    whole = [key for key in numbers if isinstance(key, int)]
    near = (*whole, 0, 1, int(info.max), int(info.max) - 1, int(info.min), int(info.min) + 1, *_INTEGERS)
    return tuple(dict.fromkeys(key for key in near if info.min <= key <= info.max))


@dataclass(frozen=True, slots=True)
class Edges(Kind):
    """Kind of an input of keys that were chosen one by one; the input may have any shape, or be ragged or sparse.

    keys: the keys.
    good, bad: the keys that TensorFlow answers and refuses, which judged() finds.
    Others: names of further inputs, which say each key's row, or its weight.
    """

    keys: tuple[Key, ...]
    good: tuple[Key, ...] = ()
    bad: tuple[Key, ...] = ()
    splits: str = ""
    lengths: str = ""
    rowids: str = ""
    num_rows: str = ""
    indices: str = ""
    dense_shape: str = ""
    weights: str = ""

    @property
    def has_ids(self) -> bool:
        return bool(self.bad)

    def judged(self, name: str, is_answered: Callable[[Mapping[str, Key]], bool]) -> Edges:
        found: dict[bool, list[Key]] = {True: [], False: []}
        for key in self.keys:
            found[is_answered({name: key})].append(key)
        return dataclasses.replace(self, good=tuple(found[True]), bad=tuple(found[False]))

    def drawn(self, name: str, count: int, draw: Draw) -> list[Key]:
        """Returns `count` keys: the next ones of the list in every second request, otherwise random ones."""
        if name in draw.only:
            return [draw.only[name]] * count
        good = self.good or self.keys
        style = draw.rng.integers(3)
        at = draw.number * 32 if draw.number % 2 == 0 else 0
        places = (np.arange(at, at + count) if draw.number % 2 == 0 else draw.rng.integers(0, len(good), count)) % len(
            good
        )
        if draw.number % 2 and style == 0:
            places[:] = places[:1]
        keys = [good[place] for place in places]
        if count and self.bad and name == draw.bad_input:
            keys[draw.rng.integers(count)] = self.bad[draw.number % len(self.bad)]
        return keys

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        if not (self.splits or self.lengths or self.rowids or self.indices):
            shape = draw.shape(specs[name])
            return {name: _array(self.drawn(name, int(np.prod(shape)), draw), specs[name]).reshape(shape)}
        total, more = self.drawn_rows(specs, draw)
        return {name: _array(self.drawn(name, total, draw), specs[name]), **more}

    def drawn_rows(self, specs: Mapping[str, InputSpec], draw: Draw) -> tuple[int, Tensors]:
        """Returns a random number of ids, and the further inputs for so many."""
        lengths = draw.row_lengths()
        indices, dense_shape = places(lengths)
        found = {
            **{self.splits: np.cumsum([0, *lengths]), self.lengths: lengths, self.rowids: indices[:, 0]},
            **{self.num_rows: np.array(len(lengths)), self.indices: indices, self.dense_shape: dense_shape},
            self.weights: _weights(draw, len(indices)),
        }
        return len(indices), {name: array.astype(specs[name].dtype) for name, array in found.items() if name in specs}

    def row(self, name: str, tensors: Tensors, number: int) -> str:
        if self.splits in tensors:
            chosen: Any = slice(*tensors[self.splits][number : number + 2].tolist())
        elif self.indices in tensors:
            chosen = tensors[self.indices][:, 0] == number
        else:
            chosen = slice(number, number + 1)
        weights = f" {self.weights}={tensors[self.weights][chosen].tolist()}" if self.weights in tensors else ""
        return f"{name}={tensors[name][chosen].tolist()!r}{weights}"


def ids(size: int, **names: str) -> Edges:
    """Returns the kind of an input of ids of a table: the first, the last and random ones, and two outside of it.

    Args:
      size: rows of the table.
      names: of the further inputs, by the fields of Edges.
    """
    within = np.random.default_rng(size).integers(0, size, _MORE_IDS).tolist()
    return Edges((0, 1, size - 1, size // 2, *within, -1, size), **names)


def padded(size: int) -> Edges:
    """Returns the kind of an input of ids of which every second one is 0, the padding."""
    kind = ids(size)
    return dataclasses.replace(kind, keys=tuple(key for one in kind.keys for key in (one, 0)))


def words(prefix: str, size: int) -> Edges:
    """Returns the kind of an input of strings: words of vocabulary() and unknown ones."""
    known = [word.encode() for word in vocabulary(prefix, size)]
    return Edges(edge_keys([*known[:_MORE_IDS], known[-1], f"{prefix}-1".encode()], "string"))


@dataclass(frozen=True, slots=True)
class ExampleEdges(Kind):
    """Kind of an input of serialized tf.Examples with fields of keys.

    fields: by name. forms: field -> its dtype, whether it has one key or any number of them, and whether a field of
    weights belongs to it.
    """

    fields: Mapping[str, Edges]
    forms: Mapping[str, tuple[str, bool, bool]]

    @property
    def has_ids(self) -> bool:
        return any(kind.bad for kind in self.fields.values())

    def judged(self, name: str, is_answered: Callable[[Mapping[str, Key]], bool]) -> ExampleEdges:
        return dataclasses.replace(
            self, fields={field_name: kind.judged(field_name, is_answered) for field_name, kind in self.fields.items()}
        )

    def tensors(self, name: str, specs: Mapping[str, InputSpec], draw: Draw) -> Tensors:
        examples = [tf.train.Example() for _ in range(draw.num_rows)]
        # One of the fields has the bad key.
        bad = [key for key, kind in self.fields.items() if kind.bad] if draw.bad_input == name else []
        bad_field = str(draw.rng.choice(bad)) if bad else ""
        for key, kind in self.fields.items():
            dtype, is_one, has_weights = self.forms[key]
            lengths = np.ones(draw.num_rows, np.int64) if is_one else draw.row_lengths()
            if is_one and draw.num_rows and draw.number % 5 == 0 and not draw.only:
                # The field is missing in an example.
                lengths[-1] = 0
            of_field = Draw(draw.rng, draw.num_rows, key if key == bad_field else "", draw.number, draw.only)
            keys = iter(kind.drawn(key, int(lengths.sum()), of_field))
            for example, length in zip(examples, lengths, strict=True):
                values = [next(keys) for _ in range(length)]
                features = example.features.feature
                if not values:
                    continue
                (features[key].bytes_list if dtype == "string" else features[key].int64_list).value.extend(values)
                if has_weights:
                    features[f"{key}_weights"].float_list.value.extend(_weights(draw, int(length)).tolist())
        return {name: np.array([example.SerializeToString() for example in examples], object)}

    def row(self, name: str, tensors: Tensors, number: int) -> str:
        examples = [tf.train.Example.FromString(text) for text in tensors[name][number : number + 1]]
        return f"{name}={' '.join(str(examples).split())}"


def _array(keys: list[Key], spec: InputSpec) -> Array:
    if spec.dtype == object:
        array = np.empty(len(keys), object)
        array[:] = keys
        return array
    return np.array(keys, spec.dtype)


_MOST_ROWS = 64
# Share of the random requests that have no row, and of those that have a key that TensorFlow refuses: each such key
# should be sent.
_NO_ROWS, _BAD_KEY = 0.01, 0.25


class NoKind(Exception):
    """Raised if a model declares no kind for an input of its signature."""


@dataclass(frozen=True, slots=True)
class RandomRequests:
    """Generator of random requests for one signature.

    Args:
      specs: the signature's inputs by name.
      kinds: input name -> kind; "*" is for all other inputs that hold numbers or strings.
    """

    specs: Mapping[str, InputSpec]
    kinds: Mapping[str, Kind]
    seed: int

    def draw(self, count: int) -> Iterator[Tensors]:
        """Yields requests of 1 to 64 rows; a few have no rows, and a quarter have a key that TensorFlow refuses.

        Raises:
          NoKind: the model declares no kind for one of the signature's inputs.
        """
        rng = np.random.default_rng(self.seed)
        kinds = self._kinds()
        with_ids = [name for name, kind in kinds.items() if kind.has_ids]
        for number in range(count):
            num_rows = 0 if rng.random() < _NO_ROWS else int(rng.integers(1, _MOST_ROWS + 1))
            bad = str(rng.choice(with_ids)) if with_ids and rng.random() < _BAD_KEY else ""
            yield self._one(Draw(rng, num_rows, bad, number))

    def row(self, tensors: Tensors, number: int) -> str:
        return "; ".join(kind.row(name, tensors, number) for name, kind in self._kinds().items())

    def of_key(self, only: Mapping[str, Key]) -> Tensors:
        """Returns a request of one row, in which an input has this key alone."""
        return self._one(Draw(np.random.default_rng(self.seed), 1, "", only=only))

    def of_rows(self, num_rows: int, count: int) -> list[Tensors]:
        """Returns `count` random valid requests of `num_rows` rows each."""
        rng = np.random.default_rng([self.seed, num_rows])
        return [self._one(Draw(rng, num_rows, "", number)) for number in range(count)]

    def _one(self, draw: Draw) -> Tensors:
        tensors: Tensors = {}
        for name, kind in self._kinds().items():
            tensors |= kind.tensors(name, self.specs, draw)
        if missing := self.specs.keys() - tensors.keys():
            raise NoKind(f"the model declares nothing of the inputs {sorted(missing)}")
        return tensors

    def _kinds(self) -> dict[str, Kind]:
        named = {name: kind for name, kind in self.kinds.items() if name in self.specs}
        if "*" in self.kinds:
            others = self.specs.keys() - named.keys()
            named |= dict.fromkeys(sorted(others), self.kinds["*"])
        return named


def judged(
    kinds: Mapping[str, Kind],
    signatures: Mapping[str, Mapping[str, InputSpec]],
    is_answered: Callable[[str, Tensors], bool],
) -> dict[str, Kind]:
    """Returns the kinds with all listed keys sorted into those that TensorFlow answers, and those that it refuses.

    Args:
      signatures: signature -> its inputs; the signature named as an input, or else the first that has it, is asked.
      is_answered: asks TensorFlow for a signature's answer to a request with one key.
    """

    def ask(only: Mapping[str, Key]) -> bool:
        (name,) = only
        having = [signature for signature, specs in signatures.items() if name in specs]
        # A field of a tf.Example is no input: then any signature has it.
        signature = name if name in signatures else [*having, *signatures][0]
        requests = RandomRequests(signatures[signature], kinds, 0)
        return is_answered(signature, requests.of_key(only))

    inputs = [name for specs in signatures.values() for name in specs]
    others = [name for name in inputs if name not in kinds]
    named = {name: others[0] if name == "*" else name for name in kinds}
    return {name: kind.judged(named[name], ask) if named[name] in inputs else kind for name, kind in kinds.items()}
