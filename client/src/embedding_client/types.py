"""Types of the client's arguments and results: ragged ids, outputs, and descriptions of models.

Legend for every shape in this package: B rows of a request, N ids in all its rows, K ids per row, D numbers per
embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FLOAT32: np.dtype[Any] = np.dtype(np.float32)

DEFAULT_SIGNATURE = "serving_default"

VALUES_SUFFIX = "__values"
ROW_SPLITS_SUFFIX = "__row_splits"
WEIGHTS_SUFFIX = "__weights"


class RaggedIds(NamedTuple):
    """Ids of B rows in one array, with the offsets at which the rows start.

    values: [N] integers or strings, ids in row order.
    row_splits: [B+1] integers, row r is values[row_splits[r]:row_splits[r + 1]].
    weights: [N] float32 or None, one factor per id; None means 1.

    Two rows, the second empty:

    >>> import numpy as np
    >>> ids = RaggedIds(np.array([1, 5]), np.array([0, 2, 2]))
    >>> [ids.values[a:b].tolist() for a, b in zip(ids.row_splits, ids.row_splits[1:])]
    [[1, 5], []]
    """

    values: Array
    row_splits: Array
    weights: Array | None = None


class Outputs(dict[str, Array]):
    """Output arrays of a signature by name, and the version of the model that computed them.

    version: None if the server does not name it, as TensorFlow Serving over HTTP.

    >>> import numpy as np
    >>> outputs = Outputs({"user": np.zeros(2)}, version=3)
    >>> outputs["user"].shape, outputs.version
    ((2,), 3)
    """

    __slots__ = ("version",)

    def __init__(
        self, arrays: Mapping[str, Array] | Iterable[tuple[str, Array]] = (), *, version: int | None = None
    ) -> None:
        super().__init__(arrays)
        self.version = version


class Neighbors(NamedTuple):
    """The result of a neighbour search: the nearest rows of Q queries, the nearest first.

    ids: [Q, n] int64, -1 after the last row of a query. scores: [Q, n] float32, NaN after the last.
    keys: [Q, n] bytes objects, integer keys as decimal text, b"" for a row without a key; None: the table has no keys.
    version: the model version that answered. labels: [Q, n] str objects, "" for a row without a label; None: the search
      asked for no labels.
    """

    ids: Array
    scores: Array
    keys: Array | None
    version: int | None
    labels: Array | None = None


class State(IntEnum):
    """State of a model version; the numbers are those of the protocol's ModelVersionStatus.State.

    Source: tensorflow_serving/apis/get_model_status.proto (9d981c5).
    """

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of one model version, and the error of the version's last load.

    code: a name of google.rpc.Code; "OK" unless the last load failed.
    message: the error text of the failed load.
    """

    version: int
    state: State
    code: str = "OK"
    message: str = ""


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """One input or output of a signature.

    dtype: numpy's name, or "string".
    shape: None if the rank is unknown; None in place of an unknown size.
    """

    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class SignatureDescription:
    """Description of a signature of a model version: its input tensors and output tensors."""

    method_name: str
    inputs: Mapping[str, TensorDescription]
    outputs: Mapping[str, TensorDescription]

    @property
    def ragged(self) -> frozenset[str]:
        """Names of the signature's features that take RaggedIds, or one list of ids for each row."""
        features = {name.removesuffix(VALUES_SUFFIX) for name in self.inputs if name.endswith(VALUES_SUFFIX)}
        return frozenset(feature for feature in features if feature + ROW_SPLITS_SUFFIX in self.inputs)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Descriptions of the signatures of one version of a model, by signature name."""

    model: str
    version: int
    signatures: Mapping[str, SignatureDescription]

    def __post_init__(self) -> None:
        # The server lists the signature that initializes a graph too, as TensorFlow Serving does; requests can not run
        # it.
        runnable = {name: one for name, one in self.signatures.items() if name != "__saved_model_init_op"}
        object.__setattr__(self, "signatures", runnable)


@dataclass(frozen=True, slots=True)
class TableDescription:
    """Description of one embedding table of a model: its name, size and features.

    vocabulary_size: its number of rows.
    embedding_dim: D, the length of a row.
    dtype: of the stored rows; the method `rows` returns float32 for every dtype.
    nbytes: the table's size in memory.
    features: the features that look their ids up in it.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    dtype: str
    nbytes: int
    features: tuple[str, ...]
