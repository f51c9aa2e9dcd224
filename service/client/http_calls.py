"""Calls over REST: TensorFlow Serving's routes, and our own for lookups and rows.

JSON says neither dtypes nor, of a single output, the name. A lookup needs none of it: embeddings are float32. For a
predict the signature is asked for once per version or label, and again when an answer no longer fits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

from service.client.answers import ModelMetadata, SignatureDescription, TensorDescription
from service.client.calls import Arrays, Call, Flow, Where
from service.client.errors import ServerFault, error_of, invalid
from service.client.http_bodies import lookup_body, predict_body, rows_body
from service.client.inputs import Ids
from service.client.json_answers import float32_array, typed_array, with_shape
from service.codecs.json_document import parse_object
from service.core.errors import Code
from service.core.types import DEFAULT_SIGNATURE, VALUES_SUFFIX, Array, State, VersionStatus

_DTYPE_NAMES = {"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16"}


class HttpCalls:
    """The methods of one model; see calls.Calls."""

    def __init__(self, model: str) -> None:
        self._path = f"/v1/models/{quote(model, safe='')}"
        # Replaced whole, entry by entry: threads may both ask for the same and agree.
        self._signatures: dict[tuple[Where, str], SignatureDescription] = {}

    def lookup(self, ids: Mapping[str, Ids], outputs: Sequence[str], at: Where, signature: str) -> Flow[Arrays]:
        """Posts to `:lookup`."""
        arrays: Arrays = yield Call(f"{self._at(at)}:lookup", lookup_body(ids, signature), _embeddings)
        if all(name in arrays for name in outputs) and all(array.size for array in arrays.values()):
            return _chosen(arrays, outputs, arrays)
        # Rare: an output that was not asked for by its feature, or no rows, whose width only the signature tells.
        described = (yield from self._signature(at, signature)).outputs
        arrays = {
            name: array if array.size or name not in described else with_shape(array, described[name].shape)
            for name, array in arrays.items()
        }
        return _chosen(arrays, outputs, described)

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Flow[Arrays]:
        """Posts to `:predict`, by column."""
        answer = yield Call(f"{self._at(at)}:predict", predict_body(inputs, signature), _outputs)
        known = self._signatures.get((at, signature))
        described = (known or (yield from self._signature(at, signature))).outputs
        columns = _columns(answer, described, inputs)
        if columns is None and known:
            described = (yield from self._signature(at, signature)).outputs
            columns = _columns(answer, described, inputs)
        if columns is None:
            raise ServerFault("INTERNAL", f"The answer's outputs are not the signature's: {', '.join(described)}.")
        arrays = {name: _typed(name, value, described[name]) for name, value in columns.items()}
        return _chosen(arrays, outputs, described)

    def rows(self, table: str, ids: Array, at: Where) -> Flow[Array]:
        """Posts to the table."""
        path = f"{self._at(at)}/tables/{quote(table, safe='')}:rows"
        rows: Array = yield Call(path, rows_body(ids), _rows)
        return rows

    def status(self, version: int | None) -> Flow[tuple[VersionStatus, ...]]:
        """Gets the versions."""
        statuses: tuple[VersionStatus, ...] = yield Call(self._at(Where(version)), None, _statuses)
        return statuses

    def metadata(self, at: Where) -> Flow[ModelMetadata]:
        """Gets the signatures."""
        metadata: ModelMetadata = yield Call(f"{self._at(at)}/metadata", None, _metadata)
        return metadata

    def _at(self, at: Where) -> str:
        if at.label is not None:
            return f"{self._path}/labels/{quote(at.label, safe='')}"
        if at.version is None:
            return self._path
        if at.version < 0:
            raise invalid(f"version is {at.version}: expected 0 or more, within 64 bits.")
        return f"{self._path}/versions/{at.version}"

    def _signature(self, at: Where, signature: str) -> Flow[SignatureDescription]:
        metadata = yield from self.metadata(at)
        name = signature or DEFAULT_SIGNATURE
        if name not in metadata.signatures:
            raise error_of("FAILED_PRECONDITION", f'Serving signature key "{name}" not found.')
        description = metadata.signatures[name]
        self._signatures[at, signature] = description
        return description


def _chosen(arrays: Arrays, outputs: Sequence[str], known: Mapping[str, object]) -> Arrays:
    """Keeps the outputs asked for, as gRPC's output_filter does, with its errors."""
    if not outputs:
        return arrays
    for name in outputs:
        if name not in known:
            names = ",".join(sorted(known))
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set {{{names}}}."
            )
        if list(outputs).count(name) > 1:
            raise invalid(f"duplicate output tensor alias: {name}")
    return {name: arrays[name] for name in outputs if name in arrays}


def _columns(
    answer: Any, described: Mapping[str, TensorDescription], inputs: Mapping[str, object]
) -> Mapping[str, Any] | None:
    """Names what an answer holds; None where it is not of this signature."""
    # Bytes are an object too.
    if isinstance(answer, dict) and answer.keys() != {"b64"}:
        return answer if answer.keys() <= described.keys() else None
    names = list(described)
    if len(names) > 1:
        # A lookup signature answers the features it is sent; of a single one only the input tells the name.
        names = [name for name in names if name in inputs or name + VALUES_SUFFIX in inputs]
    return {names[0]: answer} if len(names) == 1 else None


def _typed(name: str, value: Any, description: TensorDescription) -> Array:
    try:
        return typed_array(value, description)
    except (LookupError, TypeError, ValueError) as error:
        raise ServerFault("INTERNAL", f'output "{name}" is no {description.dtype} tensor: {error}') from error


def _embeddings(data: bytes) -> Arrays:
    return {name: float32_array(value) for name, value in parse_object(data)["embeddings"].items()}


def _outputs(data: bytes) -> Any:
    return parse_object(data)["outputs"]


def _rows(data: bytes) -> Array:
    return float32_array(parse_object(data)["rows"])


def _statuses(data: bytes) -> tuple[VersionStatus, ...]:
    return tuple(
        VersionStatus(
            int(entry["version"]),
            State[entry["state"]],
            cast(Code, entry["status"]["error_code"]),
            entry["status"]["error_message"],
        )
        for entry in parse_object(data)["model_version_status"]
    )


def _metadata(data: bytes) -> ModelMetadata:
    document = parse_object(data)
    spec, signatures = document["model_spec"], document["metadata"]["signature_def"]["signature_def"]
    return ModelMetadata(
        spec["name"],
        int(spec["version"]),
        {
            name: SignatureDescription(
                signature["method_name"], _tensors(signature["inputs"]), _tensors(signature["outputs"])
            )
            for name, signature in sorted(signatures.items())
        },
    )


def _tensors(infos: Mapping[str, Any]) -> dict[str, TensorDescription]:
    described: dict[str, TensorDescription] = {}
    for name, info in sorted(infos.items()):
        dtype, shape = info["dtype"], info["tensor_shape"]
        sizes = (int(dim["size"]) for dim in shape["dim"])
        described[name] = TensorDescription(
            _DTYPE_NAMES.get(dtype, dtype.removeprefix("DT_").lower()),
            None if shape["unknown_rank"] else tuple(None if size < 0 else size for size in sizes),
        )
    return described
