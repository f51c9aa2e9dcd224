"""Makes small valid requests for any served model, from the metadata that its server returns."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.live_server import client_context

PREDICT_METHOD_NAME = "tensorflow/serving/predict"
NUM_ROWS = 2
# A request has two rows; for a ragged feature, the first row has 2 ids and the second row has 1 id.
_ROW_LENGTHS = (2, 1)
_SUFFIXES = ("__values", "__row_splits", "__weights")
DTYPES = {
    **{"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_STRING": "object"},
    **{f"DT_{name.upper()}": name for name in "int32 int64 uint8 int8 int16 uint16 bool".split()},
}

Tensors = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature, as the server's metadata describes it. inputs: name -> (name of the dtype, shape)."""

    name: str
    method_name: str
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: tuple[str, ...] = ()

    @property
    def takes_examples(self) -> bool:
        """Whether the only input looks like serialized tf.Examples: strings, of rank 1 or of unknown rank."""
        return [(dtype, len(shape) < 2) for dtype, shape in self.inputs.values()] == [("DT_STRING", True)]

    def tensors(self) -> Tensors:
        """Returns arrays of NUM_ROWS rows for every input; ids are small, strings are "a", "b", ..."""
        ragged = {name.removesuffix("__row_splits") for name in self.inputs if name.endswith("__row_splits")}
        return {name: self._tensor(name, ragged) for name in self.inputs}

    def columns(self) -> dict[str, Any]:
        """Returns the rows of tensors() as columnar JSON: features by plain name, ragged features as nested lists."""
        found: dict[str, Any] = {}
        tensors = self.tensors()
        for name, tensor in tensors.items():
            feature = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)
            if f"{feature}__row_splits" not in tensors:
                found[name] = _plain(tensor)
            elif name.endswith("__values"):
                splits = tensors[f"{feature}__row_splits"]
                found[feature] = [_plain(tensor[a:b]) for a, b in zip(splits[:-1], splits[1:], strict=True)]
        return found

    def _tensor(self, name: str, ragged: set[str]) -> np.ndarray[Any, Any]:
        dtype, shape = self.inputs[name]
        if dtype not in DTYPES:
            raise ValueError(f"no sample for {name!r} of {dtype}")
        feature = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), None)
        if name.endswith("__row_splits"):
            return np.cumsum([0, *_ROW_LENGTHS]).astype(DTYPES[dtype])
        sizes = [NUM_ROWS if size < 0 else size for size in shape]
        if feature in ragged:
            sizes[0] = sum(_ROW_LENGTHS)
        numbers = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes) % 3 + 1
        if dtype == "DT_STRING":
            return np.vectorize(lambda n: b"abc"[n - 1 : n], otypes=[object])(numbers)
        return numbers.astype(DTYPES[dtype])


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model, as its server's metadata describes it.

    tables: table -> names of its features.
    called: names of the signatures to call; empty: all.
    """

    name: str
    version: int
    signatures: tuple[Signature, ...]
    tables: Mapping[str, tuple[str, ...]]
    called: frozenset[str] = frozenset()

    def _called(self) -> tuple[Signature, ...]:
        return tuple(s for s in self.signatures if not self.called or s.name in self.called)

    def predicted(self) -> tuple[Signature, ...]:
        """Returns the signatures that Predict can call with inputs other than tf.Examples."""
        return tuple(
            s for s in self._called() if s.method_name == PREDICT_METHOD_NAME and s.inputs and not s.takes_examples
        )

    def of_method(self, method_name: str) -> tuple[Signature, ...]:
        """Returns the signatures that Classify and Regress can call; their only input is serialized tf.Examples."""
        wanted = f"tensorflow/serving/{method_name}"
        return tuple(s for s in self._called() if s.method_name == wanted and s.takes_examples)

    def lookups(self) -> tuple[Signature, ...]:
        """Returns the signatures named "lookup...", for the route :lookup; signatures with other names are left out."""
        return tuple(s for s in self.predicted() if s.name.startswith("lookup"))


def ask(http: str, model: str) -> ServedModel:
    """Reads a model's signatures and tables from the server at `http` ("http://host:port"); raises OSError."""
    base = f"{http}/v1/models/{model}"
    document = _get(f"{base}/metadata")
    found = document["metadata"]["signature_def"]["signature_def"]
    signatures = [_signature(name, signature) for name, signature in sorted(found.items())]
    tables = {table["name"]: tuple(table["features"]) for table in _get(f"{base}/tables")["tables"]}
    return ServedModel(model, int(document["model_spec"]["version"]), tuple(signatures), tables)


def _signature(name: str, signature: dict[str, Any]) -> Signature:
    inputs = {
        key: (tensor["dtype"], tuple(int(dim["size"]) for dim in tensor["tensor_shape"]["dim"]))
        for key, tensor in sorted(signature["inputs"].items())
    }
    return Signature(name, signature["method_name"], inputs, tuple(sorted(signature["outputs"])))


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30, context=client_context()) as response:
        return json.load(response)


def _plain(array: np.ndarray[Any, Any]) -> Any:
    """Converts an array to JSON lists; bytes become strings."""
    if array.dtype == object:
        array = np.vectorize(lambda text: text.decode(), otypes=[object])(array) if array.size else array
    return array.tolist()
