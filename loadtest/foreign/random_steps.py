"""The steps by which a random model turns the keys of an input into rows, each with the keys at its own edges.

A step of a graph is right for some keys and wrong for others only where it makes a difference between keys: at its
constants. A step therefore knows its constants as keys, and how a key looked before the step, so that requests can be
chosen from the construction of the model, not from its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Key = int | float | bytes
# Applies a step to a tensor of keys.
Apply = Callable[[Any], Any]

RANGES = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Step:
    """One step between an input and the rows of a table.

    to: the dtype of the keys after the step; "" if the step does not change it.
    """

    @property
    def to(self) -> str:
        return ""

    @property
    def words(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def prepare(self, kept: list[Any]) -> Apply:
        """Returns the function of the graph; appends objects that a module must keep, such as lookup tables."""
        raise NotImplementedError

    def edges(self) -> Iterable[Key]:
        """Returns keys before the step that the step may treat in another way than their neighbors."""
        return ()

    def before(self, key: Key) -> Iterable[Key]:
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

    def apply(keys: Any) -> Any:
        for call in calls:
            keys = call(keys)
        return keys

    return apply


@dataclass(frozen=True)
class Recased(Step):
    """Lower, upper or stripped strings."""

    how: str

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return {"lower": tf.strings.lower, "upper": tf.strings.upper, "strip": tf.strings.strip}[self.how]

    def before(self, key: Key) -> Iterable[Key]:
        assert isinstance(key, bytes)
        return (key, b" " + key + b"\t") if self.how == "strip" else (key, key.swapcase())


@dataclass(frozen=True)
class Replaced(Step):
    """Strings in which a pattern is replaced; samples: strings that match the pattern."""

    pattern: str
    rewrite: str
    samples: tuple[bytes, ...]
    is_global: bool = True

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return lambda keys: tf.strings.regex_replace(keys, self.pattern, self.rewrite, replace_global=self.is_global)

    def edges(self) -> Iterable[Key]:
        return (*self.samples, self.rewrite.encode(), *(sample * 2 for sample in self.samples))

    def before(self, key: Key) -> Iterable[Key]:
        assert isinstance(key, bytes)
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

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return lambda keys: tf.strings.join([self.prefix, keys])

    def edges(self) -> Iterable[Key]:
        return (self.prefix,)

    def before(self, key: Key) -> Iterable[Key]:
        assert isinstance(key, bytes)
        return (key.removeprefix(self.prefix),)


@dataclass(frozen=True)
class Cut(Step):
    """The first bytes of strings."""

    length: int

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return lambda keys: tf.strings.substr(keys, 0, self.length)

    def before(self, key: Key) -> Iterable[Key]:
        assert isinstance(key, bytes)
        return (key, key + b"tail")


@dataclass(frozen=True)
class Hashed(Step):
    """The hash of a string: how is fast, strong or crc."""

    buckets: int
    how: str = "fast"

    @property
    def to(self) -> str:
        return "int64"

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        if self.how == "strong":
            return lambda keys: tf.strings.to_hash_bucket_strong(keys, self.buckets, [12, 34])
        hashed = tf.strings.to_hash_bucket_fast if self.how == "fast" else tf.strings.to_hash_bucket
        return lambda keys: hashed(keys, self.buckets)

    def before(self, key: Key) -> Iterable[Key]:
        return ()


@dataclass(frozen=True)
class TextHash(Hashed):
    """The hash of an integer's text."""

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        hashed = super().prepare(kept)
        return lambda keys: hashed(tf.strings.as_string(keys))


@dataclass(frozen=True)
class AsText(Step):
    """Integers as decimal text."""

    @property
    def to(self) -> str:
        return "string"

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return tf.strings.as_string

    def before(self, key: Key) -> Iterable[Key]:
        try:
            return (int(key),)
        except ValueError:
            return ()


@dataclass(frozen=True)
class AsNumber(Step):
    """Integers that strings hold as text."""

    @property
    def to(self) -> str:
        return "int64"

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return lambda keys: tf.strings.to_number(keys, tf.int64)

    def edges(self) -> Iterable[Key]:
        return (b"7", b"007", b"+7", b"-0", b"7.0", b"1e1", b"0x1", b"9223372036854775808")

    def before(self, key: Key) -> Iterable[Key]:
        return (str(key).encode(), b"0%d" % key if isinstance(key, int) else b"")


@dataclass(frozen=True)
class Retired(Step):
    """One key that becomes another one, as ids do that an owner has retired."""

    key: Key
    replacement: Key

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        def apply(keys: Any) -> Any:
            # In a graph of TensorFlow 1, == compares the Python objects.
            key, replacement = (tf.constant(value, keys.dtype) for value in (self.key, self.replacement))
            return tf.where(tf.equal(keys, key), replacement, keys)

        return apply

    def edges(self) -> Iterable[Key]:
        return (self.key, self.replacement)


@dataclass(frozen=True)
class Listed(Step):
    """Some keys that all become one key."""

    keys: tuple[Key, ...]
    replacement: Key

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        def apply(keys: Any) -> Any:
            is_listed = tf.reduce_any(tf.equal(keys[..., None], tf.constant(self.keys, keys.dtype)), -1)
            return tf.where(is_listed, tf.constant(self.replacement, keys.dtype), keys)

        return apply

    def edges(self) -> Iterable[Key]:
        return (*self.keys, self.replacement)


@dataclass(frozen=True)
class Masked(Step):
    """One key that reads a row of its own, before a hash or a vocabulary maps all others to the rows behind it."""

    key: Key
    row: int
    shift: int
    inner: Step

    @property
    def to(self) -> str:
        return self.inner.to

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        inner = self.inner.prepare(kept)

        def apply(keys: Any) -> Any:
            rows = inner(keys)
            is_masked = tf.equal(keys, tf.constant(self.key, keys.dtype))
            return tf.where(is_masked, tf.constant(self.row, rows.dtype), rows + self.shift)

        return apply

    def edges(self) -> Iterable[Key]:
        return (self.key, *self.inner.edges())

    def before(self, key: Key) -> Iterable[Key]:
        return self.inner.before(key - self.shift) if isinstance(key, int) else ()


@dataclass(frozen=True)
class Clipped(Step):
    """Integers that are clipped to a range, by clip_by_value or by minimum and maximum."""

    low: int
    high: int
    by_minimum: bool = False

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        if self.by_minimum:
            return lambda keys: tf.maximum(tf.minimum(keys, self.high), self.low)
        return lambda keys: tf.clip_by_value(keys, self.low, self.high)

    def edges(self) -> Iterable[Key]:
        return (self.low, self.high, self.low - 1000, self.high + 1000)


@dataclass(frozen=True)
class Bounded(Step):
    """Integers of a range; all others become one integer. how: the form of the condition."""

    low: int
    high: int
    other: int
    how: str = "or"

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        def apply(keys: Any) -> Any:
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

        return apply

    def edges(self) -> Iterable[Key]:
        return (self.low, self.high, self.other)


@dataclass(frozen=True)
class Modulo(Step):
    """Integers modulo a constant; how: floor, or truncate, whose remainder of a negative integer is negative."""

    divisor: int
    how: str = "floor"

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        if self.how == "truncate":
            return lambda keys: tf.truncatemod(keys, tf.constant(self.divisor, keys.dtype))
        return lambda keys: keys % tf.constant(self.divisor, keys.dtype)

    def edges(self) -> Iterable[Key]:
        return (self.divisor, 2 * self.divisor, -self.divisor)

    def before(self, key: Key) -> Iterable[Key]:
        return (key, key + 3 * self.divisor) if isinstance(key, int) else (key,)


@dataclass(frozen=True)
class Shifted(Step):
    """Integers plus a constant."""

    offset: int

    def prepare(self, kept: list[Any]) -> Apply:
        return lambda keys: keys + self.offset

    def before(self, key: Key) -> Iterable[Key]:
        assert not isinstance(key, bytes)
        return (key - self.offset,)


@dataclass(frozen=True)
class Conditional(Step):
    """Keys that all become one key if one of the request's keys is a certain one, by control flow of the graph."""

    key: Key
    replacement: Key

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        def apply(keys: Any) -> Any:
            key, replacement = (tf.constant(value, keys.dtype) for value in (self.key, self.replacement))
            has_key = tf.reduce_any(tf.equal(keys, key))
            return tf.cond(has_key, lambda: tf.fill(tf.shape(keys), replacement), lambda: tf.identity(keys))

        return apply

    def edges(self) -> Iterable[Key]:
        return (self.key, self.replacement)


@dataclass(frozen=True)
class Masking(Step):
    """The low bits of integers, as a graph of a table of 2^n rows keeps them."""

    mask: int

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return lambda keys: tf.bitwise.bitwise_and(keys, tf.constant(self.mask, keys.dtype))

    def edges(self) -> Iterable[Key]:
        return (self.mask, self.mask + 2)


@dataclass(frozen=True)
class Absolute(Step):
    """The absolute values of integers."""

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return tf.abs

    def before(self, key: Key) -> Iterable[Key]:
        assert not isinstance(key, bytes)
        return (key, -key)


@dataclass(frozen=True)
class CastTo(Step):
    """Numbers of another dtype."""

    dtype: str

    @property
    def to(self) -> str:
        return self.dtype

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return lambda keys: tf.cast(keys, self.dtype)

    def edges(self) -> Iterable[Key]:
        bits = RANGES[self.dtype]
        return (2**bits, 2 ** (bits - 1), -(2 ** (bits - 1)), 2**bits + 5)


@dataclass(frozen=True)
class Bucketed(Step):
    """The buckets of numbers."""

    boundaries: tuple[float, ...]

    @property
    def to(self) -> str:
        return "int64"

    def prepare(self, kept: list[Any]) -> Apply:
        import tensorflow as tf

        return lambda keys: tf.cast(tf.raw_ops.Bucketize(input=keys, boundaries=[*self.boundaries]), tf.int64)

    def edges(self) -> Iterable[Key]:
        return [near for value in self.boundaries for near in (value, value + 0.01, value - 0.01)]

    def before(self, key: Key) -> Iterable[Key]:
        return ()


@dataclass(frozen=True)
class Vocabulary(Step):
    """A table of keys; an unknown key reads a bucket (buckets > 0) or the default.

    keys: row -> key; the rows are shuffled if is_shuffled. mutable: a table that a checkpoint fills.
    """

    keys: tuple[Key, ...]
    buckets: int
    default: int
    is_shuffled: bool = False

    @property
    def to(self) -> str:
        return "int64"

    def prepare(self, kept: list[Any]) -> Apply:
        import numpy as np
        import tensorflow as tf

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

    @property
    def words(self) -> str:
        return (
            f"Vocabulary({len(self.keys)} keys {list(self.keys[:4])}..., buckets={self.buckets}, "
            f"default={self.default}, is_shuffled={self.is_shuffled})"
        )

    def edges(self) -> Iterable[Key]:
        return (*self.keys[:6], *self.keys[-2:])

    def before(self, key: Key) -> Iterable[Key]:
        return self.keys[key : key + 1] if isinstance(key, int) and key >= 0 else ()


@dataclass(frozen=True)
class KerasLayer(Step):
    """A stock layer of Keras that maps keys to rows; options: its arguments by name, as (name, value) pairs."""

    layer: str
    options: tuple[tuple[str, Any], ...]

    @property
    def to(self) -> str:
        return "int64"

    def made(self, keras: Any) -> Any:
        return getattr(keras.layers, self.layer)(**{name: _plain(value) for name, value in self.options})

    @property
    def words(self) -> str:
        return f"{self.layer}({', '.join(f'{name}={_plain(value)!r}' for name, value in self.options)})"

    def edges(self) -> Iterable[Key]:
        given = dict(self.options)
        found: list[Key] = [*given.get("vocabulary", ()), *given.get("bin_boundaries", ())]
        return [*found[:6], *found[-2:], *(given[n] for n in ("mask_token", "mask_value", "oov_token") if n in given)]

    def before(self, key: Key) -> Iterable[Key]:
        return dict(self.options).get("vocabulary", ())[-2:]


def _plain(value: Any) -> Any:
    # Keras takes strings, not bytes, and lists.
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
