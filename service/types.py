"""Declares types that the whole server shares: references to models, specs of tensors and signatures, ragged ids.

Legend for every shape in this package: B rows (examples) of a request, N ids in all its rows, V vocabulary_size
and D embedding_dim of a table, K max ids per row of a padded lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from service.errors import Code

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
SignatureKind = Literal["lookup", "predict"]

# Name of the signature that a request means if it names none.
DEFAULT_SIGNATURE = "serving_default"
# Name of the signature that initializes a SavedModel of TensorFlow 2, which the server runs at load. GetModelMetadata
# lists it, as TensorFlow Serving does; no request can run it, and nothing else shows it.
INIT_SIGNATURE = "__saved_model_init_op"

VALUES_SUFFIX = "__values"
ROW_SPLITS_SUFFIX = "__row_splits"
WEIGHTS_SUFFIX = "__weights"


class ModelRef(NamedTuple):
    """The model, version or label that a request names; without version and label, the latest AVAILABLE version."""

    name: str
    version: int | None = None
    label: str | None = None


class State(IntEnum):
    """The state of a model version, with the numbers that GetModelStatus uses for states.

    Source: tensorflow_serving/apis/get_model_status.proto (9d981c5).
    """

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


class GraphThreads(NamedTuple):
    """Numbers of TensorFlow's threads: of all, and, if they are set, of those within an operation and side by side."""

    all: int
    within_op: int | None = None
    side_by_side: int | None = None


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of one version, as a model's status reports it; code is "OK" unless the last load failed."""

    version: int
    state: State
    code: Code | Literal["OK"] = "OK"
    message: str = ""


class RaggedIds(NamedTuple):
    """The ids of B rows in one array, in the order of the rows, with offsets at which rows begin.

    values: [N] int64 or int32, ids in row order.
    row_splits: [B+1] int64, row r is values[row_splits[r]:row_splits[r + 1]].
    weights: [N] float32 or None, one factor per id; None means 1.

    Two rows, the second empty:

    >>> ids = RaggedIds(np.array([1, 5]), np.array([0, 2, 2]))
    >>> [ids.values[a:b].tolist() for a, b in zip(ids.row_splits, ids.row_splits[1:])]
    [[1, 5], []]
    """

    values: Array
    row_splits: Array
    weights: Array | None = None


class RaggedNames(NamedTuple):
    """The names of the inputs of one ragged feature; a signature may lack the weights input.

    feature: the name under which JSON requests may send nested lists of ids.
    """

    feature: str
    values: str
    row_splits: str
    weights: str

    @staticmethod
    def by_suffix(feature: str) -> RaggedNames:
        return RaggedNames(feature, feature + VALUES_SUFFIX, feature + ROW_SPLITS_SUFFIX, feature + WEIGHTS_SUFFIX)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The description of one input or output of a signature: name, dtype, shape.

    dtype: numpy's name ("float32", "int64", "bool"), or "string" (object arrays of bytes).
    shape: None where the rank is unknown; None within it where a size is.
    tensor_name: the graph's tensor, e.g. "serving_default_x:0".
    is_optional: a request may leave the input out.
    default: the array that a graph is fed if a request leaves the input out; None: it has no default.
    vocabulary_size: V of the table that an id input reads; None: no table is known.
    bounds: which bounds of [0, V) are checked for a predict's ids; its graph has a policy for other ids.
    vocabulary: maps keys to rows; for an input of integers, clients may send strings in place of rows.
    numpy_dtype: derived from dtype; None for a dtype that numpy does not have.
    takes_keys: derived; clients send only keys, never rows.
    takes_strings: derived; clients may send strings.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    tensor_name: str = ""
    is_optional: bool = False
    vocabulary_size: int | None = None
    bounds: Literal["both", "upper", "none"] = "both"
    vocabulary: Vocabulary | None = None
    default: Array | None = field(default=None, repr=False, compare=False)
    numpy_dtype: np.dtype[Any] | None = field(init=False, repr=False, compare=False)
    takes_keys: bool = field(init=False, repr=False, compare=False)
    takes_strings: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        is_string = self.dtype == "string"
        maps_strings = self.vocabulary is not None and self.vocabulary.key_dtype == "string"
        object.__setattr__(self, "numpy_dtype", _numpy_dtype(self.dtype))
        object.__setattr__(self, "takes_keys", self.vocabulary is not None and maps_strings == is_string)
        object.__setattr__(self, "takes_strings", is_string or maps_strings)


@dataclass(frozen=True, slots=True)
class SignatureSpec:
    """The description of one signature (a named function of a model version) with its inputs and outputs.

    ragged_names: the input names of the features that travel as ids, row splits and perhaps weights.
    definition: returns the text form of the artifact's SignatureDef, for error texts.
    output_ids: only lookups: output -> the id inputs that a request must send for it.
    defaults: derived; arrays for the inputs that a request leaves out.
    required: derived; names of the inputs that each request must send.
    ragged: derived; ragged_names by feature.
    row_inputs: derived; inputs that are no part of a ragged feature; their first dimension is the number of rows.
    """

    name: str
    kind: SignatureKind
    method_name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    ragged_names: tuple[RaggedNames, ...] = ()
    definition: Callable[[], str] = field(default=str, repr=False, compare=False)
    output_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Array] = field(init=False, repr=False, compare=False)
    required: frozenset[str] = field(init=False, repr=False, compare=False)
    ragged: Mapping[str, RaggedNames] = field(init=False, repr=False, compare=False)
    row_inputs: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The fields that follow from the inputs and outputs are computed once for a signature, because every request
        # needs them.
        required = frozenset(name for name, tensor in self.inputs.items() if not tensor.is_optional)
        parts = {name for names in self.ragged_names for name in names[1:]}
        defaults = {name: tensor.default for name, tensor in self.inputs.items() if tensor.default is not None}
        object.__setattr__(self, "defaults", defaults)
        object.__setattr__(self, "required", required)
        object.__setattr__(self, "ragged", {names.feature: names for names in self.ragged_names})
        object.__setattr__(self, "row_inputs", frozenset(self.inputs) - parts)


def runnable(signatures: Mapping[str, SignatureSpec]) -> dict[str, SignatureSpec]:
    return {name: spec for name, spec in signatures.items() if name != INIT_SIGNATURE}


def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        return None


def ragged_features(input_names: Mapping[str, object]) -> tuple[RaggedNames, ...]:
    """Returns the ragged features among a signature's inputs, by the names x__values and x__row_splits; sorted.

    >>> [names.feature for names in ragged_features({"g__values": 0, "g__row_splits": 0, "user": 0, "x__values": 0})]
    ['g']
    """
    return tuple(
        RaggedNames.by_suffix(name.removesuffix(VALUES_SUFFIX))
        for name in sorted(input_names)
        if name.endswith(VALUES_SUFFIX) and name.removesuffix(VALUES_SUFFIX) + ROW_SPLITS_SUFFIX in input_names
    )


# Dtype of a table -> numpy dtype of the numbers in the table's file. A bfloat16 is the upper half of a float32, for
# which numpy has no dtype; an int8 or int4 is multiplied by the float32 scale of its row. Two int4 share a byte.
TABLE_DTYPES: Mapping[str, str] = {
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "float64": "<f8",
    "int8": "|i1",
    "int4": "|u1",
}
# Dtypes of tables that have a float32 scale for each row.
SCALED_DTYPES = frozenset({"int8", "int4"})


def stored_columns(dtype: str, embedding_dim: int) -> int:
    """Returns how many elements of TABLE_DTYPES[dtype] a table stores for each row of D numbers.

    >>> stored_columns("int8", 5), stored_columns("int4", 5)
    (5, 3)
    """
    return (embedding_dim + 1) // 2 if dtype == "int4" else embedding_dim


def packed_dim(dtype: str, embedding_dim: int) -> int | None:
    """Returns D for a table of dtype int4, which stores two numbers in a byte, and None for a table of any
    other dtype.
    """
    return embedding_dim if dtype == "int4" else None


def saved_dtype(dtype: str) -> str:
    """Returns the dtype that a checkpoint's index names for a table of a dtype: "uint8" for int4, else the same."""
    return "uint8" if dtype == "int4" else dtype


@dataclass(frozen=True, slots=True)
class TableInfo:
    """The description of one [V, D] table, as `GET .../tables` shows it.

    dtype: the dtype of the stored numbers, one of TABLE_DTYPES.
    nbytes: bytes of the numbers and of their scales.
    unknown_key_rows: the rows that lookups read for unknown keys, the first and the last of each run of rows.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    dtype: str
    nbytes: int
    features: tuple[str, ...]
    unknown_key_rows: tuple[tuple[int, int], ...] = ()


class TableCounts(NamedTuple):
    """Counts for one table: ids and unknown keys in lookup requests, and bytes that lookups read.

    ids: number of ids that were sent; a lookup that is refused for an id without a row counts that id.
    missing_ids: number of ids that have no row.
    oov_keys: number of keys that are in no vocabulary.
    read_bytes: bytes of the rows of the ids; ids beyond max_ids_per_row count as read.
    """

    ids: int = 0
    missing_ids: int = 0
    oov_keys: int = 0
    read_bytes: int = 0


class Vocabulary(Protocol):
    """A vocabulary, which maps keys (strings or integers) to row ids of a table. Concurrency: any thread."""

    @property
    def key_dtype(self) -> Literal["string", "int64"]: ...

    @property
    def example_key(self) -> bytes | int: ...

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Returns [N] int64 row ids of [N] keys (strings: object arrays of bytes); -1 for a key that is dropped.

        Raises:
          IdOutOfRange: a key is unknown and the vocabulary has neither a row nor a policy for it.
        """

    def key_of(self, row: int) -> bytes | int | None: ...


class Table(Protocol):
    """An embedding table that can be read. Concurrency: any thread."""

    @property
    def info(self) -> TableInfo: ...

    def rows(self, ids: Array) -> Array:
        """Reads [N, D] float32 rows of a table by [N] int64 ids; raises IdOutOfRange."""

    def stored_rows(self, ids: Array) -> Array:
        """Reads [N, D] rows of a table, in the dtype that it stores, by [N] int64 ids; raises IdOutOfRange."""


class Backend(Protocol):
    """A resource with which the native core runs signatures of a version, such as an open TensorFlow session."""

    def close(self) -> None: ...
