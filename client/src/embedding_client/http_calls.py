"""Calls the Open Inference Protocol, TensorFlow Serving's REST routes, and embedding-server's own routes.

Lookups and predicts are sent in Open Inference's binary form, except these, which are sent in JSON:

- a lookup with a label of digits alone, which an Open Inference path would name as a version;
- a lookup of a server without Open Inference, as the reference server;
- a predict whose inputs are not known to have the signature's dtypes, because JSON has no dtypes: the first one, one of
  other dtypes, and each one to TensorFlow Serving, which lacks Open Inference.

JSON also has no name for a single output. So the client fetches the signature of a predict in JSON, once for each
version that answers. If the server does not name that version, the client fetches once for each version or label asked
for, and again if an answer does not fit the signature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from embedding_client.calls import Call, Flow, Reply, Where
from embedding_client.errors import InvalidRequest, ServerFault, Unimplemented, error_of, invalid
from embedding_client.http_bodies import lookup_body, neighbors_body, predict_body, rows_body
from embedding_client.inputs import Ids, lookup_tensors
from embedding_client.json_answers import float32_array, key_bytes, parse_object, typed_array, with_shape
from embedding_client.open_inference import decode_infer, encode_infer
from embedding_client.tensor_proto import dtype_of_proto_name
from embedding_client.types import (
    DEFAULT_SIGNATURE,
    FLOAT32,
    VALUES_SUFFIX,
    Array,
    ModelMetadata,
    Neighbors,
    Outputs,
    SignatureDescription,
    State,
    TableDescription,
    TensorDescription,
    VersionStatus,
)

# The largest number of signatures that a client caches, so that those of old versions do not fill the memory.
_MAX_SIGNATURES = 256


class HttpCalls:
    """The client's methods for one model, as requests to the server's HTTP routes.

    dtype: the dtype in which the server shall send float32 outputs, where it sends them in binary form.
    """

    def __init__(self, model: str, dtype: np.dtype[Any] = FLOAT32) -> None:
        self._dtype = dtype
        self._path = f"/models/{quote(model, safe='')}"
        # The caches of signatures need no lock: if two threads fetch the same signature, they store equal values.
        self._signatures: dict[tuple[Where, str], SignatureDescription] = {}
        # The signatures of versions that embedding-server answered with, by the version or label that was asked for.
        self._answered: dict[tuple[Where, str], SignatureDescription] = {}

    def lookup(self, ids: Mapping[str, Ids], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Posts ids to the model's `infer` route, or to `:lookup`."""
        inputs = lookup_tensors(ids)
        if not (at.label or "").isdecimal():
            try:
                found: Outputs = yield self._infer(inputs, outputs, at, signature)
            except Unimplemented:
                # The reference server has no Open Inference.
                pass
            else:
                return found
        answer: Outputs = yield Call(f"{self._at(at)}:lookup", lookup_body(ids, signature), _embeddings)
        if all(name in answer for name in outputs) and all(array.size for array in answer.values()):
            return _chosen(answer, outputs, answer)
        # A signature is needed only in rare cases: `outputs` names an output that the answer lacks, or an array of the
        # answer is empty, so that only the signature says how wide its rows are.
        described = (yield from self._signature(_version_answered(at, answer.version), signature)).outputs
        arrays = {
            name: array if array.size or name not in described else with_shape(array, described[name].shape)
            for name, array in answer.items()
        }
        return _chosen(Outputs(arrays, version=answer.version), outputs, described)

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Posts inputs to the model's `infer` route if their dtypes fit, else to `:predict`, as columns ("inputs")."""
        asked = at, signature
        is_label_of_digits = (at.label or "").isdecimal()
        if asked in self._answered and not is_label_of_digits and _fit(inputs, self._answered[asked]):
            try:
                found: Outputs = yield self._infer(inputs, outputs, at, signature)
            except (InvalidRequest, Unimplemented):
                # The signature may be that of a version which no longer answers; the reference server has no Open
                # Inference.
                pass
            else:
                return found
        answer, version = yield Call(f"{self._at(at)}:predict", predict_body(inputs, signature), _outputs)
        at = _version_answered(at, version)
        known = self._signatures.get((at, signature))
        description = known or (yield from self._signature(at, signature))
        columns = _columns(answer, description.outputs, inputs)
        if columns is None and known:
            description = yield from self._signature(at, signature)
            columns = _columns(answer, description.outputs, inputs)
        described = description.outputs
        if version is not None:
            # TensorFlow Serving, which lacks Open Inference, does not name the version.
            _remember(self._answered, asked, description)
        if columns is None:
            raise ServerFault("INTERNAL", f"The answer's outputs are not the signature's: {', '.join(described)}.")
        arrays = {name: _typed(name, value, described[name]) for name, value in columns.items()}
        return _chosen(Outputs(arrays, version=version), outputs, described)

    def _infer(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Call[Outputs]:
        body, json_length = encode_infer(inputs, outputs, signature, self._dtype)
        return Call(f"{self._at(at, '/v2', 'versions')}/infer", body, decode_infer, json_length)

    def tables(self, at: Where) -> Flow[tuple[TableDescription, ...]]:
        """Gets the list of the model's embedding tables from the model's `tables` route."""
        tables: tuple[TableDescription, ...] = yield Call(f"{self._at(at)}/tables", None, _tables)
        return tables

    def rows(self, table: str, ids: Array, at: Where) -> Flow[Array]:
        """Posts ids to the `:rows` route of a table, which answers with the stored rows."""
        path = f"{self._at(at)}/tables/{quote(table, safe='')}:rows"
        rows: Array = yield Call(path, rows_body(ids), _rows)
        return rows

    def neighbors(self, search: Mapping[str, Array], at: Where) -> Flow[Neighbors]:
        """Posts a search to the `:neighbors` route of a table."""
        table = bytes(search["table"].item()).decode()
        path = f"{self._at(at)}/tables/{quote(table, safe='')}:neighbors"
        found: Neighbors = yield Call(path, neighbors_body(search), _neighbors)
        return found

    def status(self, version: int | None) -> Flow[tuple[VersionStatus, ...]]:
        """Gets the states of the model's versions from the model's status route."""
        statuses: tuple[VersionStatus, ...] = yield Call(self._at(Where(version)), None, _statuses)
        return statuses

    def metadata(self, at: Where) -> Flow[ModelMetadata]:
        """Gets the signatures of a version from the model's `metadata` route."""
        metadata: ModelMetadata = yield Call(f"{self._at(at)}/metadata", None, _metadata)
        return metadata

    def _at(self, at: Where, api: str = "/v1", labels: str = "labels") -> str:
        if at.label is not None:
            return f"{api}{self._path}/{labels}/{quote(at.label, safe='')}"
        if at.version is None:
            return f"{api}{self._path}"
        if at.version < 0:
            raise invalid(f"version is {at.version}: expected 0 or more, within 64 bits.")
        return f"{api}{self._path}/versions/{at.version}"

    def _signature(self, at: Where, signature: str) -> Flow[SignatureDescription]:
        metadata = yield from self.metadata(at)
        name = signature or DEFAULT_SIGNATURE
        if name not in metadata.signatures:
            raise error_of("FAILED_PRECONDITION", f'Serving signature key "{name}" not found.')
        description = metadata.signatures[name]
        _remember(self._signatures, (at, signature), description)
        return description


def _remember(
    signatures: dict[tuple[Where, str], SignatureDescription], key: tuple[Where, str], description: SignatureDescription
) -> None:
    if len(signatures) >= _MAX_SIGNATURES:
        signatures.clear()
    signatures[key] = description


def _fit(inputs: Mapping[str, Array], description: SignatureDescription) -> bool:
    """Says whether the inputs have the signature's dtypes; strings are keys, which the server accepts for integers."""
    described = description.inputs
    return all(
        name in described and (array.dtype == object or array.dtype.name == described[name].dtype)
        for name, array in inputs.items()
    )


def _version_answered(at: Where, version: int | None) -> Where:
    return at if version is None else Where(version)


def _chosen(arrays: Outputs, outputs: Sequence[str], known: Mapping[str, object]) -> Outputs:
    """Returns the named outputs, or all if none is named; a bad name gets the error text of gRPC's output_filter."""
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
    return Outputs(((name, arrays[name]) for name in outputs if name in arrays), version=arrays.version)


def _columns(
    answer: Any, described: Mapping[str, TensorDescription], inputs: Mapping[str, object]
) -> Mapping[str, Any] | None:
    """Returns the outputs in a `:predict` answer by name; None if the answer does not fit the signature's outputs."""
    # A JSON object holds several outputs by name, unless its only key is "b64": such an object is a single string.
    if isinstance(answer, dict) and answer.keys() != {"b64"}:
        return answer if answer.keys() <= described.keys() else None
    names = list(described)
    if len(names) > 1:
        # A lookup signature returns one output for each feature sent. JSON leaves out the name of a single output,
        # which is that of the only feature sent.
        names = [name for name in names if name in inputs or name + VALUES_SUFFIX in inputs]
    return {names[0]: answer} if len(names) == 1 else None


def _typed(name: str, value: Any, description: TensorDescription) -> Array:
    try:
        return typed_array(value, description)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ServerFault("INTERNAL", f'output "{name}" is no {description.dtype} tensor: {error}') from error


def _embeddings(reply: Reply) -> Outputs:
    embeddings = parse_object(reply.body)["embeddings"]
    return Outputs({name: float32_array(value) for name, value in embeddings.items()}, version=reply.version)


def _outputs(reply: Reply) -> tuple[Any, int | None]:
    return parse_object(reply.body)["outputs"], reply.version


def _rows(reply: Reply) -> Array:
    return float32_array(parse_object(reply.body)["rows"])


def _neighbors(reply: Reply) -> Neighbors:
    answer = parse_object(reply.body)
    lists = answer["ids"]
    shape = len(lists), max(map(len, lists), default=0)
    ids, scores = np.full(shape, -1, np.int64), np.full(shape, np.nan, np.float32)
    keys, labels = np.full(shape, b"", object), np.full(shape, "", object)
    for row, found in enumerate(lists):
        ids[row, : len(found)] = found
        scores[row, : len(found)] = float32_array(answer["scores"][row])
        for place, key in enumerate(answer["keys"][row] if "keys" in answer else ()):
            keys[row, place] = b"" if key is None else key_bytes(key)
        for place, label in enumerate(answer["labels"][row] if "labels" in answer else ()):
            labels[row, place] = label or ""
    some_labels = labels if "labels" in answer else None
    return Neighbors(ids, scores, keys if "keys" in answer else None, reply.version, some_labels)


def _tables(reply: Reply) -> tuple[TableDescription, ...]:
    return tuple(
        TableDescription(
            table["name"],
            table["vocabulary_size"],
            table["embedding_dim"],
            table["dtype"],
            table["nbytes"],
            tuple(table["features"]),
        )
        for table in parse_object(reply.body)["tables"]
    )


def _statuses(reply: Reply) -> tuple[VersionStatus, ...]:
    return tuple(
        VersionStatus(
            int(entry["version"]),
            State[entry["state"]],
            entry["status"]["error_code"],
            entry["status"]["error_message"],
        )
        for entry in parse_object(reply.body)["model_version_status"]
    )


def _metadata(reply: Reply) -> ModelMetadata:
    document = parse_object(reply.body)
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
        shape = info["tensor_shape"]
        sizes = (int(dim["size"]) for dim in shape["dim"])
        described[name] = TensorDescription(
            dtype_of_proto_name(info["dtype"]),
            None if shape["unknown_rank"] else tuple(None if size < 0 else size for size in sizes),
        )
    return described
