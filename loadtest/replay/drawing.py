"""Draws random requests of each form for the models of a server: valid ones, and ones with a fault of each kind.

Request number i of a form depends only on the seed, the form, i and the models.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from loadtest.fuzz.byte_mutations import mutated
from loadtest.fuzz.json_mutations import mutated_json
from loadtest.model_samples import DTYPES, ServedModel, Signature
from loadtest.replay.dressing import dresses
from loadtest.replay.requests import BINARY_HEADER, Request, framed, of_call
from loadtest.replay.written import case_request
from loadtest.wire import message_class
from tests.conformance.oip_wires import INFER
from tests.conformance.random_calls import Array, Call, Drawn, RandomCalls, encoded, spoil

_CALLS = {
    **{"grpc_classify": "classify", "rest_classify": "classify", "grpc_regress": "regress"},
    **{"rest_regress": "regress", "grpc_multi_inference": "multi"},
}
# Shares of the requests that ask for another model, version or signature, that are mutated, and that are dressed.
_MISDIRECTED, _MUTATED, _DRESSED = 0.12, 0.25, 0.3
_ROWS = (0, 1, 1, 1, 2, 3, 17)
_EDGES = (-1, 60, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-3, 3.4e38, 1e-40, float("nan"), float("inf"))
_TEXTS = (b"red", b"key 1", b"", "gr\u00fcn".encode(), b"no such word", b"\xff\x00", b'a "quoted"\\ one')
_SIGNATURES = ("regress_flat", "classes", "regress_wide", "regress_once", "classify_uneven", "two", "nope", "")
_VERSIONS = (0, 9, -1, 2**63 - 1, 2)
# Inputs of model "described" whose shape is [B, K] -> K; 0: any K.
_IDS_PER_ROW = {"any": 0, "two": 2}


class Drawing:
    """Source of random requests.

    Args:
      artifacts: folder with MODEL/1 of each model.
    """

    def __init__(self, models: Sequence[ServedModel], artifacts: Path, seed: int) -> None:
        self._models, self._seed = models, seed
        versions = {model.name: artifacts / model.name / "1" for model in models}
        calls = {
            name: RandomCalls(name, version, _IDS_PER_ROW)
            for name, version in versions.items()
            if _has_manifest(version)
        }
        self._lookups = [found for found in calls.values() if found.lookups]
        self._signatures = [
            (model, signature)
            for model in models
            for signature in model.predicted()
            if all(dtype in DTYPES for dtype, _ in signature.inputs.values())
        ]

    def draw(self, form: str, number: int) -> Request:
        rng = Random(f"{self._seed} {form} {number}")
        request = replace(self._plain(rng, form), name=f"random {number}")
        if rng.random() < _MISDIRECTED:
            request = _misdirected(rng, request)
        if rng.random() < _MUTATED:
            request = _mutated(rng, request)
        if rng.random() < _DRESSED:
            name, dress = rng.choice(list(dresses(form)))
            request = replace(dress(request), name=f"{request.name}, {name}")
        return request

    def dressed(self, form: str) -> Iterator[Request]:
        """Yields a valid request of a form once with each dress."""
        rng = Random(f"{self._seed} {form}")
        plain = next(request for _ in range(100) if b"nope" not in (request := self._plain(rng, form)).body)
        for name, dress in dresses(form):
            yield replace(dress(plain), name=f"plain, {name}")

    def _plain(self, rng: Random, form: str) -> Request:
        if form in _CALLS:
            return _inference(rng, form, _CALLS[form])
        if form == "rows":
            return self._rows(rng)
        while True:
            if form == "lookup" or self._lookups and rng.random() < 0.5:
                calls = rng.choice(self._lookups).draw(rng)
            else:
                calls = encoded(rng, _drawn(rng, *rng.choice(self._signatures)))
            found = [request for request in (of_call(call, "") for call in calls) if request.form == form]
            if found:
                return rng.choice(found)

    def _rows(self, rng: Random) -> Request:
        model = rng.choice([model for model in self._models if model.tables])
        table = rng.choice([*model.tables, *model.tables, "nope"])
        ids: list[Any] = [_id(rng) for _ in range(rng.choice((0, 1, 2, 5, 40)))]
        if rng.random() < 0.15:
            ids.append(rng.choice((None, True, 1.5, "red", [1], {}, 1e3)))
        more = {rng.choice(("signature_name", "weights", "x")): 1} if rng.random() < 0.05 else {}
        version = rng.choice(("", "", "/versions/1"))
        body = json.dumps({rng.choice(("ids",) * 19 + ("id",)): ids} | more).encode()
        return of_call(Call("", False, f"/v1/models/{model.name}{version}/tables/{table}:rows", body), "")


def _has_manifest(version: Path) -> bool:
    return (version / "assets.extra" / "lookup_manifest.json").exists()


def _id(rng: Random) -> int:
    return rng.choice(_EDGES) if rng.random() < 0.02 else rng.randrange(4)


def _values(rng: Random, dtype: str, sizes: Sequence[int]) -> Array:
    count = int(np.prod(sizes))
    kind = DTYPES[dtype]
    if kind == "object":
        return np.array([*(rng.choice(_TEXTS) for _ in range(count)), None], object)[:-1].reshape(sizes)
    if kind.startswith("float"):
        with np.errstate(over="ignore"):
            return np.array([rng.choice(_FLOATS) for _ in range(count)], kind).reshape(sizes)
    return np.array([_id(rng) for _ in range(count)], np.int64).astype(kind).reshape(sizes)


def _drawn(rng: Random, model: ServedModel, signature: Signature) -> Drawn:
    """Draws tensors for a signature by the dtypes and shapes of its inputs."""
    rows = rng.choice(_ROWS)
    ragged = {
        name.removesuffix("__row_splits").removesuffix("_splits")
        for name in signature.inputs
        if name.endswith("_splits")
    }
    lengths = {name: [rng.choice((0, 1, 2, 5)) for _ in range(rows)] for name in ragged}
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in signature.inputs.items():
        sizes = [size if size >= 0 else (rng.choice((1, 2, 3)) if at else rows) for at, size in enumerate(shape)]
        feature = next((feature for feature in ragged if name.startswith(f"{feature}_")), None)
        if feature is not None and name.endswith("_splits"):
            arrays[name] = np.cumsum([0, *lengths[feature]]).astype(DTYPES[dtype])
            continue
        if feature is not None:
            sizes = [sum(lengths[feature])]
        arrays[name] = _values(rng, dtype, sizes or rng.choice(([], [rows], [rows, 2])))
    if rng.random() < 0.15:
        # A number that is not finite has no integer.
        with np.errstate(invalid="ignore"):
            spoil(rng, arrays)
    nested = {name: _as_json(rng, array) for name, array in arrays.items()}
    return Drawn(model.name, signature.name, arrays, nested, {}, [])


def _as_json(rng: Random, array: Array) -> Any:
    """Converts an array to JSON lists; strings that are no UTF-8, and some others, become {"b64": ...}."""
    if array.dtype != object:
        return array.tolist()

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(item) for item in value]
        try:
            if rng.random() < 0.9:
                return value.decode()
        except UnicodeDecodeError:
            pass
        return {"b64": base64.b64encode(value).decode()}

    return text(array.tolist())


def _inference(rng: Random, form: str, call: str) -> Request:
    """Draws a request to classify or regress tf.Examples by model "half"; some name a wrong signature."""
    examples = [_example(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 5)))]
    signature = call if rng.random() < 0.7 else rng.choice(("scores", *_SIGNATURES))
    case: dict[str, Any] = {
        "call": call,
        "spec": {"name": "half", "signature": signature},
        "examples": examples,
    }
    if rng.random() < 0.2:
        case["context"] = _example(rng)
    if call == "multi":
        case["tasks"] = [
            {
                "method": method if rng.random() < 0.95 else "predict",
                "spec": {"name": "half", "signature": method if rng.random() < 0.9 else rng.choice(_SIGNATURES)},
            }
            for method in rng.choices(("classify", "regress"), k=rng.choice((0, 1, 2, 2, 3)))
        ]
    return case_request("", case, "grpc" if form.startswith("grpc") else "rest")


def _example(rng: Random) -> dict[str, Any]:
    values: dict[str, Any] = {"s": "text", "ids": [1, 2, 3]}
    example = {name: value for name, value in values.items() if rng.random() < 0.2}
    if rng.random() < 0.95:
        example["x"] = (
            rng.choice((2.0, 0.5, -1.0, 1e30)) if rng.random() < 0.9 else rng.choice((2, "text", [1.0, 2.0], []))
        )
    return example


def _misdirected(rng: Random, request: Request) -> Request:
    """Changes which model, version, label or signature a request asks for."""
    if request.is_grpc:
        return _misdirected_grpc(rng, request)
    if rng.random() < 0.3 and b'"signature_name"' in request.body:
        name = rng.choice(("nope", "", "serving_default", "lookup", "\u00e9"))
        body = re.sub(rb'"signature_name": ?"[^"]*"', f'"signature_name": "{name}"'.encode(), request.body, count=1)
        return replace(request, body=body)
    path = re.sub("/(versions|labels)/[^/:]*", "", request.path)
    model = rng.choice(("toy", "half", "nope", "", "toy%20", "a" * 300, "%E9"))
    version = rng.choice(("stable", "nope", "", *map(str, _VERSIONS), "0002", "1.0", "x", "+1", "9" * 30))
    change = rng.choice(
        (
            lambda: re.sub("/models/[^/:]*", f"/models/{model}", path),
            lambda: re.sub("(/models/[^/:]*)", rf"\1/versions/{version}", path),
            lambda: re.sub("(/models/[^/:]*)", rf"\1/labels/{version}", path),
        )
    )
    return replace(request, path=change())


def _misdirected_grpc(rng: Random, request: Request) -> Request:
    if request.path == INFER:
        message = message_class("inference.ModelInferRequest").FromString(request.body[5:])
        if rng.random() < 0.5:
            message.model_name = rng.choice(("toy", "half", "nope", ""))
        elif rng.random() < 0.5:
            message.model_version = rng.choice(("1", "2", "9", "x", "-1", "stable", "9" * 30))
        else:
            message.parameters["signature_name"].string_param = rng.choice(("nope", "", "serving_default"))
        return replace(request, body=framed(message.SerializeToString(deterministic=True)))
    names = {"Predict": "PredictRequest", "Classify": "ClassificationRequest", "Regress": "RegressionRequest"}
    method = request.path.rpartition("/")[2]
    message = message_class(f"tensorflow.serving.{names.get(method, 'MultiInferenceRequest')}").FromString(
        request.body[5:]
    )
    tasks = message.tasks if method == "MultiInference" else [message]
    for spec in (task.model_spec for task in tasks):
        which = rng.randrange(4)
        if which == 0:
            spec.name = rng.choice(("toy", "half", "nope", "", "a" * 300))
        elif which == 1:
            spec.version.value = rng.choice(_VERSIONS)
        elif which == 2:
            spec.version_label = rng.choice(("stable", "nope", ""))
        else:
            spec.signature_name = rng.choice(("nope", "", "serving_default", "lookup", "\u00e9"))
    return replace(request, body=framed(message.SerializeToString(deterministic=True)))


def _mutated(rng: Random, request: Request) -> Request:
    """Mutates the bytes of a message, of a document, or of a document's structure."""
    if request.is_grpc:
        return replace(request, body=framed(mutated(rng, [request.body[5:]])))
    length = dict(request.headers).get(BINARY_HEADER)
    if length is not None:
        head, tensors = request.body[: int(length)], request.body[int(length) :]
        which = rng.randrange(3)
        head = mutated(rng, [head]) if which else head
        tensors = mutated(rng, [tensors]) if which != 1 else tensors
        return replace(request, body=head + tensors, headers=((BINARY_HEADER, str(len(head))),))
    try:
        document = json.loads(request.body)
    except ValueError:
        return request
    body, headers = mutated_json(rng, [document])
    return replace(request, body=body, headers=(*request.headers, *headers.items()))
