"""Generates requests of tensors or serialized tf.Examples, for signatures that run a model's own graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.signature_runner import InputInfo
from model_export.graphs.source import PredictSignature
from model_export.parity.oracle import Ids, Keys
from model_export.parity.parity_cases import Case, CaseWriter
from model_export.spec.features import FeatureSpec, ModelSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.types import Array, RaggedIds

_SIZES = (1, 17, 64)


def predict_requests(
    manifest: Manifest,
    spec: ModelSpec,
    described: PredictSignature,
    inputs: Mapping[str, InputInfo],
    keys: Mapping[str, Keys],
) -> Iterator[dict[str, Array]]:
    """Yields requests to a predict signature, of 1, 17 and 64 rows or of the number of rows that its shapes fix.

    Args:
      described: the signature as the ExportSource describes it; inputs: the inputs in saved_model.pb.
      keys: the vocabulary of each feature that has one.

    Raises:
      ExportError: an input is sparse or composite, so no request can hold it.
    """
    fed_by_us = {name for name, info in inputs.items() if info.default is None}
    if composite := sorted(name for name in fed_by_us if not inputs[name].dtype):
        raise ExportError(f"inputs {composite} are sparse or composite; a signature takes plain tensors")
    features = described.features or (tuple(f.name for f in spec.features) if described.examples_input else ())
    is_example = described.examples_input is not None
    if is_example:
        keys = {name: Keys(entry.entry, entry.lines) for name, entry in keys.items()}
    entry = SignatureEntry("predict", {name: _travels(spec.feature(name)) for name in features})
    dtypes = {name: "int64" for name in features}
    writer = CaseWriter(manifest, entry, keys, dtypes)
    rng = np.random.default_rng(7)
    fixed = {info.shape[0] for info in inputs.values() if info.shape and info.shape[0] is not None}
    for rows, case in zip(sizes := tuple(fixed) or _SIZES, writer.predict_cases(sizes), strict=True):
        if is_example:
            examples = [_example(spec, described, case, row, rng).SerializeToString() for row in range(rows)]
            yield {described.examples_input or "": _bytes(examples)}
            continue
        request = case.inputs(entry)
        request = {name: _cast(array, inputs[name].dtype) for name, array in request.items() if name in inputs}
        for name in sorted(fed_by_us - set(request)):
            table = described.row_inputs.get(name)
            highest = 1 if table is None else spec.table(table).vocabulary_size
            request[name] = _numbers(rng, inputs[name], _length(spec, name, request, rows), highest)
        yield request


def _travels(feature: FeatureSpec) -> LookupFeature:
    if feature.row_splits_input is None:
        return LookupFeature(feature.ids_input)
    return LookupFeature(feature.ids_input, feature.row_splits_input, combiner="sum")


def _length(spec: ModelSpec, name: str, request: Mapping[str, Array], rows: int) -> int:
    # A weights input has one number per id; other inputs have one number per row.
    owner = next((f for f in spec.features if f.weights_input == name and f.ids_input in request), None)
    return rows if owner is None else len(request[owner.ids_input])


def _numbers(rng: np.random.Generator, info: InputInfo, rows: int, highest: int) -> Array:
    shape = () if info.shape == () else (rows, *((size or 1) for size in (info.shape or (None,))[1:]))
    if info.dtype == "string":
        return np.full(shape, b"", object)
    if np.dtype(info.dtype).kind == "f":
        return rng.uniform(0.1, 1.0, shape).astype(info.dtype)
    return rng.integers(0, highest, shape).astype(info.dtype)


def _cast(array: Array, dtype: str) -> Array:
    return array if dtype == "string" else array.astype(dtype)


def _example(spec: ModelSpec, described: PredictSignature, case: Case, row: int, rng: np.random.Generator) -> Any:
    fields = {name: _field(spec.feature(name), _ids_of_row(ids, row)) for name, ids in case.features.items()}
    lengths = {
        **described.dense_fields,
        **{weights: len(_ids_of_row(case.features[name], row)) for name, weights in described.weight_fields.items()},
    }
    for name, length in lengths.items():
        numbers = rng.uniform(0.1, 1.0, length).tolist()
        fields[name] = tf.train.Feature(float_list=tf.train.FloatList(value=numbers))
    return tf.train.Example(features=tf.train.Features(feature=fields))


def _ids_of_row(ids: Ids, row: int) -> list[Any]:
    start, stop = (ids.row_splits[row], ids.row_splits[row + 1]) if isinstance(ids, RaggedIds) else (row, row + 1)
    items: list[Any] = (ids.values if isinstance(ids, RaggedIds) else ids)[start:stop].tolist()
    return items


def _field(feature: FeatureSpec, items: list[Any]) -> Any:
    # In a tf.Example, a feature with a vocabulary of strings holds keys, even if a tensor input takes row numbers.
    if feature.vocabulary is not None and feature.vocabulary.key_dtype == "string":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=items))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=items))


def _bytes(items: list[bytes]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array
