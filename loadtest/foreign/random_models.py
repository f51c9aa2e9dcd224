"""Composes models at random: a seed and a number decide inputs, steps, tables, combiners, tower and framework.

Nothing here builds: a Construction is plain data, from which random_building writes the model, requests at its edges
are drawn, and a report tells a person what the model is.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from loadtest.foreign.frameworks import tf

Key = int | float | bytes
# Applies a step to a tensor of keys.
Apply = Callable[[Any], Any]

RANGES = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Step:
    """One step between an input and the rows of a table, with the keys at its own edges.

    A step of a graph is right for some keys and wrong for others only where it makes a difference between keys: at its
    constants. A step therefore knows its constants as keys, and how a key looked before the step, so that requests can
    be chosen from the construction of the model, not from its graph.
    """

    def prepare(self, kept: list[Any]) -> Apply:
        """Returns the function of the graph; appends objects that a module must keep, such as lookup tables."""
        return self.apply

    def apply(self, keys: Any) -> Any:
        raise NotImplementedError

    def edges(self) -> Iterable[Key]:
        """Returns keys before the step that the step may treat in another way than their neighbors."""
        return ()

    def before(self, key: Any) -> Iterable[Key]:
        """Returns keys that the step probably turns into this key."""
        return (key,)


def edges_of(steps: Sequence[Step], last: Iterable[Key]) -> list[Key]:
    """Returns the keys of an input at the edges of all its steps; last: edges of the rows behind the last step."""
    found = list(last)
    for step in reversed(steps):
        own = [near for key in step.edges() for near in _neighbors(key)]
        # A vocabulary may have many keys: the edges of the steps behind it lead to a few of them.
        found = own + [key for after in found for key in step.before(after)]
    return list(dict.fromkeys(found))


def _neighbors(key: Key) -> list[Key]:
    if isinstance(key, bytes):
        return [key, key.upper(), key.lower(), key.title(), key + b" ", b" " + key, key[:-1], key[1:], key + b"x"]
    return [key, key - 1, key + 1]


def chain(steps: Sequence[Step], kept: list[Any]) -> Apply:
    calls = [step.prepare(kept) for step in steps]
    return lambda keys: functools.reduce(lambda found, call: call(found), calls, keys)


def dtype_after(step: Step) -> str:
    """Returns the dtype of the keys after a step; "" if the step does not change it."""
    if isinstance(step, Masked):
        return dtype_after(step.inner)
    if isinstance(step, CastTo):
        return step.dtype
    if isinstance(step, AsText):
        return "string"
    return "int64" if isinstance(step, Hashed | AsNumber | Bucketed | Vocabulary | KerasLayer) else ""


@dataclass(frozen=True)
class Recased(Step):
    """Lower, upper or stripped strings."""

    how: str

    def apply(self, keys: Any) -> Any:
        return {"lower": tf.strings.lower, "upper": tf.strings.upper, "strip": tf.strings.strip}[self.how](keys)

    def before(self, key: bytes) -> Iterable[Key]:
        return (key, b" " + key + b"\t") if self.how == "strip" else (key, key.swapcase())


@dataclass(frozen=True)
class Replaced(Step):
    """Strings in which a pattern is replaced; samples: strings that match the pattern."""

    pattern: str
    rewrite: str
    samples: tuple[bytes, ...]
    is_global: bool = True

    def apply(self, keys: Any) -> Any:
        return tf.strings.regex_replace(keys, self.pattern, self.rewrite, replace_global=self.is_global)

    def edges(self) -> Iterable[Key]:
        return (*self.samples, self.rewrite.encode(), *(sample * 2 for sample in self.samples))

    def before(self, key: bytes) -> Iterable[Key]:
        middle, rewrite = len(key) // 2, self.rewrite.encode()
        found = [key]
        for sample in self.samples:
            found += [sample + key, key + sample, key[:middle] + sample + key[middle:]]
            if rewrite and rewrite in key:
                found.append(key.replace(rewrite, sample))
        return found


@dataclass(frozen=True)
class Prefixed(Step):
    """Strings behind a constant prefix."""

    prefix: bytes

    def apply(self, keys: Any) -> Any:
        return tf.strings.join([self.prefix, keys])

    def edges(self) -> Iterable[Key]:
        return (self.prefix,)

    def before(self, key: bytes) -> Iterable[Key]:
        return (key.removeprefix(self.prefix),)


@dataclass(frozen=True)
class Cut(Step):
    """The first bytes of strings."""

    length: int

    def apply(self, keys: Any) -> Any:
        return tf.strings.substr(keys, 0, self.length)

    def before(self, key: bytes) -> Iterable[Key]:
        return (key, key + b"tail")


@dataclass(frozen=True)
class Hashed(Step):
    """The hash of a string: how is fast, strong or crc."""

    buckets: int
    how: str = "fast"

    def apply(self, keys: Any) -> Any:
        if self.how == "strong":
            return tf.strings.to_hash_bucket_strong(keys, self.buckets, [12, 34])
        return (tf.strings.to_hash_bucket_fast if self.how == "fast" else tf.strings.to_hash_bucket)(keys, self.buckets)

    def before(self, key: Any) -> Iterable[Key]:
        return ()


@dataclass(frozen=True)
class TextHash(Hashed):
    """The hash of an integer's text."""

    def apply(self, keys: Any) -> Any:
        return super().apply(tf.strings.as_string(keys))


@dataclass(frozen=True)
class AsText(Step):
    """Integers as decimal text."""

    def apply(self, keys: Any) -> Any:
        return tf.strings.as_string(keys)

    def before(self, key: Any) -> Iterable[Key]:
        try:
            return (int(key),)
        except ValueError:
            return ()


@dataclass(frozen=True)
class AsNumber(Step):
    """Integers that strings hold as text."""

    def apply(self, keys: Any) -> Any:
        return tf.strings.to_number(keys, tf.int64)

    def edges(self) -> Iterable[Key]:
        return (b"7", b"007", b"+7", b"-0", b"7.0", b"1e1", b"0x1", b"9223372036854775808")

    def before(self, key: Any) -> Iterable[Key]:
        return (str(key).encode(), b"0%d" % key if isinstance(key, int) else b"")


@dataclass(frozen=True)
class Retired(Step):
    """One key that becomes another one, as ids do that an owner has retired."""

    key: Key
    replacement: Key

    def apply(self, keys: Any) -> Any:
        # In a graph of TensorFlow 1, == compares the Python objects.
        key, replacement = (tf.constant(value, keys.dtype) for value in (self.key, self.replacement))
        return tf.where(tf.equal(keys, key), replacement, keys)

    def edges(self) -> Iterable[Key]:
        return (self.key, self.replacement)


@dataclass(frozen=True)
class Conditional(Retired):
    """Keys that all become one key if one of the request's keys is a certain one, by control flow of the graph."""

    def apply(self, keys: Any) -> Any:
        key, replacement = (tf.constant(value, keys.dtype) for value in (self.key, self.replacement))
        has_key = tf.reduce_any(tf.equal(keys, key))
        return tf.cond(has_key, lambda: tf.fill(tf.shape(keys), replacement), lambda: tf.identity(keys))


@dataclass(frozen=True)
class Listed(Step):
    """Some keys that all become one key."""

    keys: tuple[Key, ...]
    replacement: Key

    def apply(self, keys: Any) -> Any:
        is_listed = tf.reduce_any(tf.equal(keys[..., None], tf.constant(self.keys, keys.dtype)), -1)
        return tf.where(is_listed, tf.constant(self.replacement, keys.dtype), keys)

    def edges(self) -> Iterable[Key]:
        return (*self.keys, self.replacement)


@dataclass(frozen=True)
class Masked(Step):
    """One key that reads a row of its own, before a hash or a vocabulary maps all others to the rows behind it."""

    key: Key
    row: int
    shift: int
    inner: Step

    def prepare(self, kept: list[Any]) -> Apply:
        inner = self.inner.prepare(kept)

        def apply(keys: Any) -> Any:
            rows = inner(keys)
            is_masked = tf.equal(keys, tf.constant(self.key, keys.dtype))
            return tf.where(is_masked, tf.constant(self.row, rows.dtype), rows + self.shift)

        return apply

    def edges(self) -> Iterable[Key]:
        return (self.key, *self.inner.edges())

    def before(self, key: Any) -> Iterable[Key]:
        return self.inner.before(key - self.shift) if isinstance(key, int) else ()


@dataclass(frozen=True)
class Clipped(Step):
    """Integers that are clipped to a range, by clip_by_value or by minimum and maximum."""

    low: int
    high: int
    by_minimum: bool = False

    def apply(self, keys: Any) -> Any:
        if self.by_minimum:
            return tf.maximum(tf.minimum(keys, self.high), self.low)
        return tf.clip_by_value(keys, self.low, self.high)

    def edges(self) -> Iterable[Key]:
        return (self.low, self.high, self.low - 1000, self.high + 1000)


@dataclass(frozen=True)
class Bounded(Step):
    """Integers of a range; all others become one integer. how: the form of the condition."""

    low: int
    high: int
    other: int
    how: str = "or"

    def apply(self, keys: Any) -> Any:
        other = tf.fill(tf.shape(keys), tf.constant(self.other, keys.dtype))
        if self.how == "or":
            return tf.where((keys < self.low) | (keys >= self.high), other, keys)
        if self.how == "not":
            inside = tf.logical_not(tf.logical_or(tf.less(keys, self.low), tf.greater(keys, self.high - 1)))
            return tf.where(inside, keys, other)
        if self.how == "arithmetic":
            inside = tf.cast((keys >= self.low) & (keys < self.high), keys.dtype)
            return keys * inside + self.other * (1 - inside)
        return tf.where(keys < self.high, keys, other)

    def edges(self) -> Iterable[Key]:
        return (self.low, self.high, self.other)


@dataclass(frozen=True)
class Modulo(Step):
    """Integers modulo a constant; how: floor, or truncate, whose remainder of a negative integer is negative."""

    divisor: int
    how: str = "floor"

    def apply(self, keys: Any) -> Any:
        divisor = tf.constant(self.divisor, keys.dtype)
        return tf.truncatemod(keys, divisor) if self.how == "truncate" else keys % divisor

    def edges(self) -> Iterable[Key]:
        return (self.divisor, 2 * self.divisor, -self.divisor)

    def before(self, key: Any) -> Iterable[Key]:
        return (key, key + 3 * self.divisor) if isinstance(key, int) else (key,)


@dataclass(frozen=True)
class Shifted(Step):
    """Integers plus a constant."""

    offset: int

    def apply(self, keys: Any) -> Any:
        return keys + self.offset

    def before(self, key: int) -> Iterable[Key]:
        return (key - self.offset,)


@dataclass(frozen=True)
class Masking(Step):
    """The low bits of integers, as a graph of a table of 2^n rows keeps them."""

    mask: int

    def apply(self, keys: Any) -> Any:
        return tf.bitwise.bitwise_and(keys, tf.constant(self.mask, keys.dtype))

    def edges(self) -> Iterable[Key]:
        return (self.mask, self.mask + 2)


@dataclass(frozen=True)
class Absolute(Step):
    """The absolute values of integers."""

    def apply(self, keys: Any) -> Any:
        return tf.abs(keys)

    def before(self, key: int) -> Iterable[Key]:
        return (key, -key)


@dataclass(frozen=True)
class CastTo(Step):
    """Numbers of another dtype."""

    dtype: str

    def apply(self, keys: Any) -> Any:
        return tf.cast(keys, self.dtype)

    def edges(self) -> Iterable[Key]:
        bits = RANGES[self.dtype]
        return (2**bits, 2 ** (bits - 1), -(2 ** (bits - 1)), 2**bits + 5)


@dataclass(frozen=True)
class Bucketed(Step):
    """The buckets of numbers."""

    boundaries: tuple[float, ...]

    def apply(self, keys: Any) -> Any:
        return tf.cast(tf.raw_ops.Bucketize(input=keys, boundaries=[*self.boundaries]), tf.int64)

    def edges(self) -> Iterable[Key]:
        return [near for value in self.boundaries for near in (value, value + 0.01, value - 0.01)]

    def before(self, key: Any) -> Iterable[Key]:
        return ()


@dataclass(frozen=True)
class Vocabulary(Step):
    """A table of keys; an unknown key reads a bucket (buckets > 0) or the default.

    keys: row -> key; the rows are shuffled if is_shuffled.
    """

    keys: tuple[Key, ...]
    buckets: int
    default: int
    is_shuffled: bool = False

    def prepare(self, kept: list[Any]) -> Apply:
        rows = np.arange(len(self.keys), dtype=np.int64)
        if self.is_shuffled:
            rows = np.random.default_rng(len(self.keys)).permutation(rows)
        dtype = tf.string if isinstance(self.keys[0], bytes) else tf.int64
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(self.keys, dtype), tf.constant(rows))
        if self.buckets:
            table = tf.lookup.StaticVocabularyTable(initializer, self.buckets)
        else:
            table = tf.lookup.StaticHashTable(initializer, self.default)
        kept.append(table)
        return table.lookup

    def __repr__(self) -> str:
        more = f"buckets={self.buckets}, default={self.default}, is_shuffled={self.is_shuffled}"
        return f"Vocabulary({len(self.keys)} keys {list(self.keys[:4])}..., {more})"

    def edges(self) -> Iterable[Key]:
        return (*self.keys[:6], *self.keys[-2:])

    def before(self, key: Any) -> Iterable[Key]:
        return self.keys[key : key + 1] if isinstance(key, int) and key >= 0 else ()


@dataclass(frozen=True)
class KerasLayer(Step):
    """A stock layer of Keras that maps keys to rows; options: its arguments by name, as (name, value) pairs."""

    layer: str
    options: tuple[tuple[str, Any], ...]

    def made(self, keras: Any) -> Any:
        return getattr(keras.layers, self.layer)(**{name: _plain(value) for name, value in self.options})

    def __repr__(self) -> str:
        return f"{self.layer}({', '.join(f'{name}={_plain(value)!r}' for name, value in self.options)})"

    def edges(self) -> Iterable[Key]:
        given = dict(self.options)
        found: list[Key] = [*given.get("vocabulary", ()), *given.get("bin_boundaries", ())]
        return [*found[:6], *found[-2:], *(given[n] for n in ("mask_token", "mask_value", "oov_token") if n in given)]

    def before(self, key: Any) -> Iterable[Key]:
        return dict(self.options).get("vocabulary", ())[-2:]


def _plain(value: Any) -> Any:
    # Keras takes strings, not bytes, and lists.
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


_T = TypeVar("_T")
Framework = Literal["module", "session", "keras3", "tf_keras", "columns"]
Form = Literal["rows", "column", "grid", "open_grid", "ragged", "sparse", "one", "many"]

_NAME = re.compile(r"random_(\d+)_(\d+)$")
# One model in this many has a table of up to 2^22 rows; the others have at most 70,000.
_LARGE_EVERY, _MOST_ROWS, _USUAL_ROWS = 10, 2**22, 70_000
_DIMS = (1, 2, 3, 4, 5, 8, 13, 16, 32)
# What a graph does with a table before it gathers rows (a row of zeros before the first one, a cast, rows of norm 1,
# all rows but the last, the reverse order), how it gathers them (a product with a one-hot matrix), and what it does
# with the rows (zeros for id 0, times the root of the width, as transformers do).
READS = ("zero_row", "cast_table", "normalized", "sliced", "reversed", "one_hot", "zeroed", "scaled")
# Largest number of columns of a one-hot matrix.
_MOST_ONE_HOT = 2000
# Share of plain models.
_PLAIN = 0.4
# Share of models that are composed only of forms that `adopt` reads, so that its descriptions answer the requests. Of
# the other models, TensorFlow answers five in six.
_KNOWN = 0.5
# Largest number of numbers in a table.
_MOST_NUMBERS = 2**24
_FRAMEWORKS: tuple[Framework, ...] = (
    ("module",) * 9 + ("keras3",) * 5 + ("tf_keras", "session", "session", "columns", "columns")
)
# Patterns as people write them to clean keys, each with a rewrite and with strings that it matches.
_PATTERNS = (
    Replaced("-", "", (b"-",)),
    Replaced("^https?://", "", (b"https://", b"http://")),
    Replaced("[-./]", "_", (b"-", b".", b"/")),
    Replaced(r"\s+", " ", (b"  ", b"\t", b"\n")),
    Replaced("[0-9]+", "#", (b"7", b"2024")),
    Replaced("^(user|item)_", "", (b"user_", b"item_")),
    Replaced(r"\?.*$", "", (b"?q=1", b"?")),
    Replaced("[^a-z0-9_]", "", (b"!", b"A", "é".encode())),
    Replaced(":", "|", (b":", b"|"), is_global=False),
    Replaced(r"^\W+|\W+$", "", (b"..", b"#")),
    Replaced("^$", "missing", (b"",)),
)
_WORDS = (
    *(b"a", b"b", b"a_b", b"c_d", b"ab12", b"x", b"red", b"Blue", b"a.org/b", b"item_7", b"0", b"12", b"[UNK]", b"nan"),
)
# Dtype of keys -> masks of Keras' layer Hashing, its lookup layer, masks of that layer, and keys that the layer refuses
# in its vocabulary: the mask, and the key of unknown ids.
_LAYERS: dict[str, tuple[tuple[Key, ...], str, tuple[Key, ...], tuple[Key, ...]]] = {
    "int64": ((0, -1, 7), "IntegerLookup", (0, 5), (0, -1, 5)),
    "string": ((b"", b"[PAD]", b"nan"), "StringLookup", (b"", b"[PAD]", b"<pad>"), (b"", b"[UNK]", b"[PAD]", b"<pad>")),
}
_MASKS = (b"", b"[PAD]", b"nan", b"NaN", b"-1", b"0", b"null", b"a", b"<pad>", b"unknown")


@dataclass(frozen=True, slots=True)
class Feature:
    """An input of keys, the steps that make them rows of a table, and the combiner of the rows.

    form: "rows" [B], "column" [B, 1], "grid" [B, 5], "open_grid" [B, ?], "ragged" and "sparse" with more inputs, "one"
        and "many": a field of a tf.Example that has one key, or any number.
    combiner: a name of random_combiners.COMBINERS; "none" keeps each row.
    table: the name of the table; features may share one.
    layer: a special kind of Keras' embedding layer: "mixed_bfloat16", "reversible", "int8", "lora"; or what a graph of
        TensorFlow's ops does with its table or the rows that it gathers: one of READS; else "".
    """

    name: str
    dtype: str
    form: Form
    steps: tuple[Step, ...]
    combiner: str
    table: str
    weights: bool = False
    max_norm: float | None = None
    layer: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a random model. parts: number of variables that hold it, by rows. saved: the dtype of its numbers."""

    name: str
    rows: int
    dim: int
    dtype: str = "float32"
    parts: int = 1
    strategy: str = "div"


@dataclass(frozen=True, slots=True)
class Construction:
    """A random model: what a framework is asked to build.

    tower: "none", "concat", "dense", "dot" or "cosine". numbers: width of an input of numbers; 0: none.
    has_variant: whether the less usual form is taken: a second signature of a module, reference variables of a session,
        sparse inputs of feature columns in place of tf.Examples, tf.saved_model.save in place of tf_keras' export.
    """

    name: str
    framework: Framework
    features: tuple[Feature, ...]
    tables: tuple[Table, ...]
    tower: str
    numbers: int = 0
    has_variant: bool = False

    def table(self, feature: Feature) -> Table:
        return next(table for table in self.tables if table.name == feature.table)

    @property
    def words(self) -> str:
        more = (f", {self.numbers} numbers" if self.numbers else "") + (", variant" if self.has_variant else "")
        lines = [f"{self.name}: {self.framework}, tower {self.tower}{more}"]
        for one in self.features:
            table = self.table(one)
            parts = f" in {table.parts} parts by {table.strategy}" if table.parts > 1 else ""
            read = f"{table.name}[{table.rows}, {table.dim}] {table.dtype}{parts}"
            way = " -> ".join([f"{one.dtype} {one.form}", *map(repr, one.steps), read])
            more = ("weights" * one.weights, f"max_norm={one.max_norm}" if one.max_norm else "")
            lines.append(f"{one.name}: {', '.join(filter(None, (way, one.combiner, one.layer, *more)))}")
        return "\n  ".join(lines)


def random_name(seed: int, number: int) -> str:
    return f"random_{seed}_{number}"


def construction_of(name: str) -> Construction | None:
    """Returns the random model of this name; None if the name is not one of a random model.

    >>> construction_of("random_1_7") == construction_of("random_1_7"), construction_of("dlrm")
    (True, None)
    """
    match = _NAME.match(name)
    return _Composer(name, int(match[1]), int(match[2])).compose() if match else None


def _of_all_rows(combiner: str) -> str:
    # These combiners leave out empty rows at the end of a request, so their vectors could not be joined with others.
    for cut, whole in (("segment_", "unsorted_segment_"), ("sparse_segment_", "counted_segment_")):
        if combiner.startswith(cut):
            return whole + combiner.removeprefix(cut)
    return combiner.replace("fast_lookup_sparse", "safe").replace("lookup_sparse", "safe")


class _Composer:
    def __init__(self, name: str, seed: int, number: int) -> None:
        self._name, self._rng = name, np.random.default_rng([seed, number])
        self._most_rows = _MOST_ROWS if number % _LARGE_EVERY == _LARGE_EVERY - 1 else _USUAL_ROWS
        self._framework: Framework = self._one(_FRAMEWORKS)
        # In a plain model, one ingredient stands alone, so that nothing else keeps adopt from describing a lookup.
        self._is_plain = self._chance(_PLAIN) and self._framework != "columns"
        self._has_stock_layers = self._framework in ("keras3", "tf_keras")
        self._is_known = self._chance(_KNOWN)

    def compose(self) -> Construction:
        count = 1 if self._is_plain else self._one((1, 1, 1, 2, 2, 3))
        features, tables = [], {}
        is_parsed = self._framework in ("module", "session") and self._chance(0.12)
        is_parsed = is_parsed and not (self._is_plain or self._is_known)
        for number in range(count):
            feature, table = self._feature(f"f{number}", is_parsed, [*tables.values()])
            features.append(feature)
            tables[table.name] = table
        towers = ("none", "none", "concat", "dense", "dense", *(("dot", "cosine") if count > 1 else ()))
        tower = "none" if self._is_plain else self._one(towers)
        if tower in ("dot", "cosine"):
            # Both vectors must have one width.
            dim = tables[features[0].table].dim
            tables = {name: dataclasses.replace(table, dim=dim) for name, table in tables.items()}
            # A grid without a combiner would be wider than the other vector.
            mean = "keras_mean" if self._has_stock_layers else "mean"
            features = [
                dataclasses.replace(one, combiner=mean) if one.combiner == "none" and "grid" in one.form else one
                for one in features
            ]
        if tower != "none":
            features = [dataclasses.replace(one, combiner=_of_all_rows(one.combiner)) for one in features]
        numbers = 3 if tower in ("concat", "dense") and not is_parsed and self._chance(0.3) else 0
        has_variant = self._chance(0.4)
        if self._framework == "columns":
            # Weights of a feature column are a field of a tf.Example.
            has_variant = (has_variant or self._is_known) and not any(one.weights for one in features)
        return Construction(
            self._name, self._framework, tuple(features), tuple(tables.values()), tower, numbers, has_variant
        )

    def _feature(self, name: str, is_parsed: bool, tables: Sequence[Table]) -> tuple[Feature, Table]:
        dtype, form = self._input(is_parsed)
        # A few columns of Keras take keys through a chain of layers, all others through ops of TensorFlow.
        steps, rows = self._column(dtype) if self._framework == "columns" else self._chain(dtype)
        layer = ""
        has_layer = self._chance(0.2) and not (self._is_plain or self._is_known)
        if self._framework == "keras3" and has_layer:
            layer = self._one(("mixed_bfloat16", "reversible", "int8", "lora"))
        if self._framework == "module" and has_layer:
            layer = self._one(READS)
        fitting = [table for table in tables if table.rows >= rows]
        if layer == "one_hot" and rows > _MOST_ONE_HOT:
            layer = "scaled"
        if fitting and self._chance(0.3) and not layer and self._framework != "columns":
            table = fitting[0]
        else:
            table = self._table(f"t{name[1:]}", rows, form)
        combiner, weights, max_norm = self._combiner(form)
        return Feature(name, dtype, form, tuple(steps), combiner, table.name, weights, max_norm, layer), table

    def _input(self, is_parsed: bool) -> tuple[str, Form]:
        if self._framework == "columns":
            return self._one(("int64", "string", "string")), "many"
        if is_parsed:
            return self._one(("int64", "int64", "string")), self._one(("one", "many"))
        if self._is_plain:
            return self._one(("int64", "string")), self._one(("rows", "rows", "grid"))
        if self._is_known:
            known: tuple[Form, ...] = ("rows", "rows", "column", "grid", "open_grid", "ragged", "ragged", "ragged")
            dtype = self._one(("int64",) * 5 + ("string",) * 5 + ("int32",))
            return dtype, self._one(known[:5] if self._has_stock_layers else known)
        others = ("int32", "int32", "float32", "uint64", "uint32", "int16", "uint8")
        dtype = self._one(("int64",) * 12 + ("string",) * 12 + others)
        forms: tuple[Form, ...] = ("rows", "rows", "rows", "column", "grid", "open_grid", "ragged", "ragged", "sparse")
        form = self._one(forms[:6] if self._has_stock_layers else forms)
        return dtype, form

    def _table(self, name: str, rows: int, form: Form) -> Table:
        # Tables are often padded: their last rows belong to no key.
        style = self._rng.integers(6)
        if style == 0:
            rows += int(self._rng.integers(1, 30))
        if style == 1 and rows <= 1024:
            rows = 1024
        dtype = self._one(("float32",) * 7 + ("float16", "bfloat16", "float64"))
        has_one_dtype = self._is_plain or self._framework in ("columns", "tf_keras")
        has_no_double = dtype == "float64" and self._has_stock_layers
        if has_one_dtype or has_no_double or self._is_known and form == "ragged":
            dtype = "float32"
        dims = [dim for dim in _DIMS if dim * rows <= _MOST_NUMBERS]
        parts = int(self._rng.integers(2, 5)) if self._framework in ("session", "columns") and self._chance(0.5) else 1
        strategy = self._one(("div", "mod")) if self._framework == "session" and not self._is_known else "div"
        return Table(name, rows, self._one(dims), dtype, min(parts, rows), strategy)

    def _combiner(self, form: Form) -> tuple[str, bool, float | None]:
        if self._framework == "columns":
            has_weights = self._chance(0.2) and not self._is_known
            return self._one(("sum", "mean", "sqrtn")), has_weights, self._norm(0.2)
        if form in ("rows", "column", "one"):
            return "none", False, None if self._has_stock_layers else self._norm(0.1)
        if self._has_stock_layers:
            return self._one(("none", "keras_mean", "keras_masked_mean", "keras_sum", "keras_max")), False, None
        if form in ("grid", "open_grid"):
            return self._one(("none", "sum", "mean", "mean_not_0", "mean_not_minus_1")), False, None
        names = ("sum", "mean", "sqrtn")
        if form == "ragged":
            kinds = ("reduce", "segment", "sparse_segment", "unsorted_segment", "lookup_sparse", "safe")
        else:
            kinds = ("lookup_sparse", "fast_lookup_sparse", "safe", "safe_default")
        kind, name = self._one(kinds), self._one(names)
        if name == "sqrtn" and kind in ("reduce", "segment", "unsorted_segment"):
            name = "mean"
        if "lookup" in kind or "safe" in kind:
            return f"{kind}_{name}", self._chance(0.35) and form != "many", self._norm(0.15)
        return f"{kind}_{name}", False, None

    def _norm(self, chance: float) -> float | None:
        return self._one((0.5, 1.5, 2.0)) if self._chance(chance) else None

    def _rows(self, least: int = 1) -> int:
        """Returns a number of rows: any magnitude, or beside a power of two."""
        most = np.log2(self._most_rows)
        rows = int(2 ** self._rng.uniform(np.log2(max(least, 1)), most))
        if self._chance(0.25):
            rows = 2 ** int(np.log2(rows)) + self._one((-1, 0, 1))
        if self._most_rows == _MOST_ROWS:
            rows = max(rows, self._one((65_536, 65_537, 200_000, 2**20, 2**22)))
        return min(max(rows, least), self._most_rows)

    def _column(self, dtype: str) -> tuple[list[Step], int]:
        # A categorical column is one step; random_building makes it of the framework's own column.
        if dtype == "int64" and self._chance(0.5):
            rows = self._rows()
            if self._chance(0.5):
                return [Bounded(0, rows, int(self._rng.integers(rows)))], rows
            return [], rows
        if self._chance(0.4):
            buckets = self._rows()
            return [AsText(), Hashed(buckets)] if dtype == "int64" else [Hashed(buckets)], buckets
        keys = self._keys(dtype)
        buckets = self._one((0, 1, 3))
        default = -1 if buckets or self._chance(0.5) else int(self._rng.integers(len(keys)))
        return [Vocabulary(keys, buckets, default)], len(keys) + buckets

    def _chain(self, dtype: str) -> tuple[list[Step], int]:
        steps: list[Step] = []
        if dtype == "float32":
            return self._floats()
        if dtype == "string":
            return self._strings(steps)
        size = self._rows()
        if self._is_known and (dtype == "int32" or self._chance(0.6)):
            return self._known_integers(size)
        if self._is_known:
            return self._keyed_integers(steps, size, dtype)
        if dtype != "int64":
            # Ids of other dtypes are cast, before or after a modulo; small dtypes have few values.
            bits = RANGES[dtype]
            size = min(size, 2**bits if dtype.startswith("u") else 2 ** (bits - 1))
            size = min(size, self._most_rows)
            if self._chance(0.3) and size > 1 and dtype != "int16":
                steps.append(Modulo(min(size, 2 ** (bits - 1) - 1)))
            if self._chance(0.7) or dtype.startswith("u") or dtype == "int16":
                steps.append(CastTo("int32" if self._chance(0.2) and dtype in ("uint8", "int16") else "int64"))
        elif self._chance(0.1) and size < 2**31:
            steps.append(CastTo("int32"))
        if self._chance(0.25):
            return self._keyed_integers(steps, size, dtype_after(steps[-1]) or dtype if steps else dtype)
        for _ in range(1 if self._is_plain else self._one((0, 0, 1, 1, 1, 1, 2))):
            step, size = self._integer_step(size)
            steps.append(step)
        return steps, size

    def _known_integers(self, size: int) -> tuple[list[Step], int]:
        """Returns steps that treat ids outside the table as a policy of the manifest says, and the number of rows."""
        kind = self._rng.integers(3)
        if kind == 0:
            return [Clipped(0, size - 1, self._chance(0.4))], size
        if kind == 1:
            other = int(self._rng.integers(size + 1))
            return [Bounded(0, size, other, self._one(("or", "not", "arithmetic")))], max(size, other + 1)
        return [], size

    def _integer_step(self, size: int) -> tuple[Step, int]:
        """Returns a step whose keys are rows of [0, size) before it, and the number of rows after it."""
        row = int(self._rng.integers(size))
        last = self._one((0, size - 1, row))
        kind = self._rng.integers(10)
        if self._chance(0.04):
            return Conditional(row, last), size
        if kind == 0 or (kind == 9 and size < 4):
            return Retired(row, self._one((0, last))), size
        if kind == 1:
            return Clipped(0, size - 1, self._chance(0.4)), size
        if kind == 2:
            # The unknown row lies within the table, or it is one more row.
            high, other = (size, last) if self._chance(0.6) else (size, size)
            return Bounded(0, high, other, self._one(("or", "not", "arithmetic"))), max(size, other + 1)
        if kind == 3:
            return Bounded(0, size, last, "below"), size
        if kind == 4:
            divisor = max(1, self._one((size, size // 2, min(size, 1000))))
            return Modulo(divisor, self._one(("floor", "floor", "truncate"))), divisor
        if kind == 5:
            offset = self._one((1, 2, -1, 100))
            return Shifted(offset), max(1, size + offset)
        if kind == 6 and size > 1:
            mask = 2 ** int(np.log2(size)) - 1
            return Masking(mask), mask + 1
        if kind == 7:
            return Absolute(), size
        if kind == 8:
            return Listed(tuple(sorted({int(i) for i in self._rng.integers(0, size, 3)})), last), size
        return (Clipped(1, size - 2) if size > 3 else Absolute()), size

    def _keyed_integers(self, steps: list[Step], size: int, dtype: str) -> tuple[list[Step], int]:
        if self._has_stock_layers and self._chance(0.7):
            layer, rows = self._layer("int64")
            return [*steps, layer], rows
        if self._chance(0.5) or dtype != "int64":
            text: list[Step] = [*steps]
            if self._chance(0.4):
                # An integer is missing if it has a certain value; its text is hashed otherwise.
                buckets = self._rows()
                missing = self._one((0, -1, 99, size - 1))
                return [*text, Masked(missing, 0, 1, TextHash(buckets))], buckets + 1
            return self._strings([*text, AsText()])
        keys = self._keys("int64")
        found = Vocabulary(keys, self._one((0, 2)), self._one((0, len(keys))), self._chance(0.4))
        rows = max(len(keys) + found.buckets, found.default + 1)
        if self._chance(0.3):
            # A second table maps the rows of the first one again.
            again = Vocabulary(tuple(range(0, rows, 2)), 0, len(range(0, rows, 2)), True)
            return [*steps, found, again], again.default + 1
        return [*steps, found], rows

    def _floats(self) -> tuple[list[Step], int]:
        if self._chance(0.3):
            boundaries = tuple(sorted({round(float(x), 2) for x in self._rng.uniform(-5, 50, 6)}))
            if self._has_stock_layers and self._chance(0.7):
                return [KerasLayer("Discretization", (("bin_boundaries", boundaries),))], len(boundaries) + 1
            return [Bucketed(boundaries)], len(boundaries) + 1
        is_cast = not (self._has_stock_layers and self._chance(0.5))
        steps: list[Step] = [CastTo(self._one(("int32", "int64")))] if is_cast else []
        size = self._rows()
        if self._chance(0.4) and steps:
            step, size = self._integer_step(size)
            steps.append(step)
        return steps, size

    def _strings(self, steps: list[Step]) -> tuple[list[Step], int]:
        if self._is_known and self._chance(0.3):
            steps.append(Retired(self._one(_MASKS), self._one(_WORDS)))
        elif not self._is_known:
            for _ in range(int(self._chance(0.6)) if self._is_plain else self._one((0, 0, 0, 0, 0, 1, 1, 2))):
                steps.append(self._string_step())
        if self._has_stock_layers and self._chance(0.7):
            layer, rows = self._layer("string")
            return [*steps, layer], rows
        kind = int(self._chance(0.5)) if self._is_known else int(self._rng.integers(7))
        if kind == 0 and not self._is_known and all(isinstance(step, AsText) for step in steps):
            # Text that a step has changed is seldom a number.
            size = self._rows()
            step, after = self._integer_step(size)
            return [*steps, AsNumber(), step], after
        last: Step
        if kind in (1, 2):
            keys = self._keys("string")
            last = Vocabulary(keys, self._one((0, 1, 3)), self._one((0, len(keys), len(keys) - 1)), self._chance(0.3))
            rows = max(len(keys) + last.buckets, last.default + 1)
        else:
            rows = self._rows()
            last = Hashed(rows, "fast" if self._is_known else self._one(("fast",) * 6 + ("strong", "crc")))
        if self._chance(0.35):
            last, rows = Masked(self._one(_MASKS), 0, 1, last), rows + 1
        if not self._is_known and self._chance(0.15):
            step, rows = self._integer_step(rows)
            return [*steps, last, step], rows
        return [*steps, last], rows

    def _string_step(self) -> Step:
        kind = self._rng.integers(7)
        if kind < 3:
            return self._one(_PATTERNS)
        if kind == 3:
            return Recased(self._one(("lower", "lower", "upper", "strip")))
        if kind == 4:
            return Retired(self._one(_MASKS), self._one(_WORDS))
        if kind == 5:
            return Prefixed(self._one((b"user_", b"v1:", b"x")))
        return Cut(self._one((2, 3, 8)))

    def _layer(self, dtype: str) -> tuple[Step, int]:
        """Returns a stock layer of Keras that maps keys to rows, and the number of rows."""
        hashing_masks, lookup, lookup_masks, unwanted = _LAYERS[dtype]
        options: list[tuple[str, object]]
        if self._chance(0.4):
            bins = self._rows(2)
            options = [("num_bins", bins)]
            if self._chance(0.5):
                options.append(("mask_value", self._one(hashing_masks)))
            if self._chance(0.3) and not self._is_known:
                options.append(("salt", self._one((7, (133, 137)))))
            return KerasLayer("Hashing", tuple(options)), bins
        keys = tuple(key for key in self._keys(dtype) if key not in unwanted) or (101,)
        options = [("vocabulary", keys)]
        if self._chance(0.6):
            options.append(("mask_token", self._one(lookup_masks)))
        buckets = self._one((1, 1, 2, 5))
        options.append(("num_oov_indices", buckets))
        return KerasLayer(lookup, tuple(options)), len(keys) + buckets + 1

    def _keys(self, dtype: str) -> tuple[Key, ...]:
        count = int(2 ** self._rng.uniform(1, 10))
        if dtype == "int64":
            spread = self._one((1, 3, 10, 10**6, 2**40))
            first = self._one((0, 1, 101, -50))
            return tuple(first + spread * i for i in range(count))
        extra = [_WORDS[i] for i in self._rng.permutation(len(_WORDS))[: int(self._rng.integers(len(_WORDS)))]]
        made = [b"%s%d" % (self._one((b"w", b"user_", b"K-", b"")), i) for i in range(10, 10 + count)]
        return tuple(dict.fromkeys([*extra, *made]))

    def _one(self, choices: Sequence[_T]) -> _T:
        return choices[int(self._rng.integers(len(choices)))]

    def _chance(self, share: float) -> bool:
        return bool(self._rng.random() < share)
