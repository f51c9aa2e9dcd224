"""Draws random calls of a model's lookup signatures from its manifest, and encodes each for every wire.

Most calls are valid; some hold an id without a row, lack an input, or have wrong row splits or a wrong dtype. Tests
send the same bytes to two servers and compare the bytes of their answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.protos import message_class
from tests.conformance.oip_wires import INFER, described, infer_request
from tests.conformance.wires import FIELDS, PREDICT, fill_tensor
from tests.toy_model import MANIFEST

Array = np.ndarray[Any, Any]
_WORDS = ("red", "grün", "blue", "", "no such word", 'a "quoted"\\ word')
_CODES = (100, -5, 7, 0, 12345678901)


@dataclass(frozen=True, slots=True)
class Call:
    """One request in the bytes of one wire.

    path: path of the gRPC method or of the HTTP route.
    """

    wire: str
    is_grpc: bool
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Drawn:
    """A request before it is encoded.

    arrays: tensors by input name. nested, weights: ids and weights, flat or in lists, by their names in JSON.
    """

    model: str
    signature: str
    arrays: dict[str, Array]
    nested: dict[str, Any]
    weights: dict[str, Any]
    outputs: list[str]


class RandomCalls:
    """Generates random calls of one model version.

    Args:
      ids_per_row: input name -> K, for inputs with ids of shape [B, K]; 0: a random K in each call.
    """

    def __init__(self, model: str, artifact: Path, ids_per_row: Mapping[str, int] | None = None) -> None:
        self._model = model
        self._manifest = json.loads((artifact / MANIFEST).read_text())
        self._ids_per_row = ids_per_row or {}

    @property
    def lookups(self) -> list[str]:
        """Names of the lookup signatures."""
        return sorted(name for name, entry in self._manifest["signatures"].items() if entry["kind"] == "lookup")

    def draw(self, rng: random.Random) -> list[Call]:
        """Draws one random request; returns the calls for every wire that can express it."""
        signature = rng.choice(self.lookups)
        return encoded(rng, self._drawn(rng, signature))

    def _drawn(self, rng: random.Random, signature: str) -> Drawn:
        features = self._manifest["signatures"][signature]["features"]
        chosen = rng.sample(sorted(features), rng.randint(1, len(features)))
        rows = rng.choice((1, 1, 2, 3, 17, 40))
        has_bad_ids = rng.random() < 0.15
        drawn = Drawn(self._model, signature, {}, {}, {}, [])
        for name in chosen:
            feature = features[name]
            num_rows = rng.randint(1, 5) if rng.random() < 0.05 else rows
            is_tensor_core = self._manifest["signatures"][signature].get("device") == "tpu_tensor_core"
            draw_id = self._ids_of(rng, name, has_bad_ids)
            if feature.get("output"):
                drawn.outputs.append(feature["output"])
            if feature.get("row_splits") is None:
                if (name := feature["ids"]) in self._ids_per_row:
                    per_row = self._ids_per_row[name] or rng.randint(1, 4)
                    rows_of_ids = [[draw_id() for _ in range(per_row)] for _ in range(num_rows)]
                    drawn.arrays[name] = np.array(rows_of_ids, np.int64)
                    drawn.nested[name] = rows_of_ids
                    continue
                ids = [draw_id() for _ in range(num_rows)]
                drawn.arrays[feature["ids"]] = self._array(ids, "int32" if is_tensor_core else "int64")
                drawn.nested[feature["ids"]] = ids
                continue
            lists = [[draw_id() for _ in range(rng.choice((0, 1, 1, 2, 3, 9, 20)))] for _ in range(num_rows)]
            flat = [one for row in lists for one in row]
            drawn.arrays[feature["ids"]] = self._array(flat, "int32" if is_tensor_core else "int64")
            splits = np.cumsum([0, *map(len, lists)])
            drawn.arrays[feature["row_splits"]] = splits.astype(np.int64)
            drawn.nested[self._json_name(feature)] = lists
            if feature.get("weights") and rng.random() < 0.5:
                weights = [[rng.choice((0.0, 1.0, 0.5, -1.0, 2.25)) for _ in row] for row in lists]
                drawn.arrays[feature["weights"]] = np.array([w for row in weights for w in row], np.float32)
                drawn.weights[self._json_name(feature)] = weights
        if rng.random() < 0.06:
            spoil(rng, drawn.arrays)
        return drawn

    def _json_name(self, feature: Mapping[str, Any]) -> str:
        ids: str = feature["ids"]
        return ids.removesuffix("__values")

    def _ids_of(self, rng: random.Random, feature: str, has_bad_ids: bool) -> Callable[[], Any]:
        vocabulary = self._manifest["features"][feature].get("vocabulary")
        size = self._manifest["tables"][self._manifest["features"][feature]["table"]]["vocabulary_size"]
        if vocabulary is not None:
            is_string = self._manifest["vocabularies"][vocabulary].get("key_dtype", "string") == "string"
            keys: tuple[Any, ...] = _WORDS if is_string else _CODES
            known = keys[:3]
            return lambda: rng.choice(keys if has_bad_ids else known)
        return lambda: rng.randint(-size - 1, size + 2) if has_bad_ids and rng.random() < 0.3 else rng.randrange(size)

    def _array(self, ids: list[Any], dtype: str) -> Array:
        if any(isinstance(one, str) for one in ids):
            return np.array([one.encode() if isinstance(one, str) else b"1" for one in ids] + [None], object)[:-1]
        return np.array(ids, np.int64).astype(dtype) if ids else np.zeros(0, dtype)


def spoil(rng: random.Random, arrays: dict[str, Array]) -> None:
    """Spoils one input: drops, shortens, reshapes, renames or converts it."""
    name = rng.choice(sorted(arrays))
    match rng.randrange(5):
        case 0:
            del arrays[name]
        case 1 if arrays[name].ndim:
            arrays[name] = arrays[name][:-1]
        case 2:
            arrays[name] = arrays[name].reshape(1, -1)
        case 3:
            arrays["no_such_input"] = arrays[name]
        case 4 if arrays[name].dtype != object:
            arrays[name] = arrays[name].astype(np.float32 if arrays[name].dtype != np.float32 else np.int64)


def encoded(rng: random.Random, drawn: Drawn) -> list[Call]:
    """Encodes a request for every wire that can express it."""
    calls = [_grpc(rng, drawn), *_oip_grpc(rng, drawn), *_oip_http(rng, drawn)]
    return calls + _json(rng, drawn)


def _grpc(rng: random.Random, drawn: Drawn) -> Call:
    message = message_class("tensorflow.serving.PredictRequest")()
    message.model_spec.name, message.model_spec.signature_name = drawn.model, drawn.signature
    if rng.random() < 0.2:
        message.model_spec.version.value = 1
    for name in rng.sample(sorted(drawn.arrays), len(drawn.arrays)):
        array = drawn.arrays[name]
        if array.dtype != object and rng.random() < 0.4:
            tensor = message.inputs[name]
            tensor.dtype, _ = FIELDS[array.dtype.name]
            for size in array.shape:
                tensor.tensor_shape.dim.add().size = size
            tensor.tensor_content = array.tobytes()
        else:
            fill_tensor(message.inputs[name], array)
    if drawn.outputs and rng.random() < 0.2:
        message.output_filter.extend(rng.sample(drawn.outputs, rng.randint(1, len(drawn.outputs))))
    return Call("grpc", True, PREDICT, message.SerializeToString(deterministic=True))


def _oip_grpc(rng: random.Random, drawn: Drawn) -> list[Call]:
    calls = []
    for wire, is_raw in (("oip grpc", True), ("oip grpc contents", False)):
        message = infer_request(drawn.model, drawn.signature, drawn.arrays, is_raw=is_raw)
        message.id = rng.choice(("", "i"))
        if drawn.outputs and rng.random() < 0.2:
            message.outputs.add(name=rng.choice(drawn.outputs))
        calls.append(Call(wire, True, INFER, message.SerializeToString(deterministic=True)))
    return calls


def _oip_http(rng: random.Random, drawn: Drawn) -> list[Call]:
    calls = []
    path = f"/v2/models/{drawn.model}/infer"
    for wire, is_binary in (("oip json", False), ("oip binary", True)):
        inputs, binary = described(drawn.arrays, is_binary=is_binary)
        document: dict[str, Any] = {
            "inputs": inputs,
            "parameters": {"signature_name": drawn.signature, "binary_data_output": is_binary},
        }
        if rng.random() < 0.3:
            document["id"] = "i"
        if drawn.outputs and rng.random() < 0.2:
            document["outputs"] = [{"name": rng.choice(drawn.outputs)}]
        head = json.dumps(document).encode()
        headers = (("Inference-Header-Content-Length", str(len(head))),) if is_binary else ()
        calls.append(Call(wire, False, path, head + binary, headers))
    return calls


def _json(rng: random.Random, drawn: Drawn) -> list[Call]:
    base = f"/v1/models/{drawn.model}" + rng.choice(("", "", "/versions/1"))
    named = {"signature_name": drawn.signature}
    weights = {f"{name}__weights": rows for name, rows in drawn.weights.items()}
    columns = drawn.nested | weights
    documents: list[tuple[str, str, dict[str, Any]]] = [
        ("json lookup", "lookup", {"features": drawn.nested, "weights": drawn.weights, **named}),
        ("json columns", "predict", {"inputs": columns, **named}),
    ]
    counts = {len(rows) if isinstance(rows, list) else None for rows in columns.values()}
    if len(counts) == 1 and None not in counts:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        documents.append(("json rows", "predict", {"instances": rows, **named}))
    separators = rng.choice(((",", ":"), (", ", ": ")))
    return [
        Call(wire, False, f"{base}:{method}", json.dumps(document, separators=separators).encode())
        for wire, method, document in documents
    ]
