"""Makes requests for a new version, records the model's answers to them, and writes warm-up requests.

TensorFlow Serving replays warm-up requests when it loads a version, before it serves that version. There is one per
signature, and one per static batch size of a padded lookup, so that XLA compiles all of them then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.summations import with_summations
from model_export.graphs.signature_runner import InputInfo, read_saved_model, read_signature_inputs, serving_graph
from model_export.graphs.source import (
    RECORDED_PATH,
    ExportSource,
    PredictSignature,
    SavedParts,
    predict_entry,
    tensor_features,
)
from model_export.parity.oracle import Ids, Keys, read_keys
from model_export.parity.parity_cases import Case, CaseWriter
from model_export.parity.prediction_log import LoggedPrediction, write_predictions
from model_export.spec.features import FeatureSpec, ModelSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import LookupFeature, Manifest, SignatureEntry
from service.artifact.tf_record import MAX_WARMUP_RECORDS, WARMUP_PATH
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
            yield {described.examples_input or "": np.array(examples, object)}
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


def write_warmup(artifact: Path, requests: Mapping[str, list[Mapping[str, Array]]]) -> int:
    """Writes the file of warm-up requests into an artifact; returns the number of requests.

    Args:
      requests: signature -> valid requests; TensorFlow Serving refuses a version whose warm-up fails.
    """
    predictions = [LoggedPrediction(name, inputs) for name, several in requests.items() for inputs in several]
    return write_predictions(artifact / WARMUP_PATH, predictions[:MAX_WARMUP_RECORDS])


def record_requests(
    artifact: Path, manifest: Manifest, source: ExportSource, parts: SavedParts, *, warmup: bool
) -> Manifest:
    """Runs generated requests on the model in memory; writes the answers and warm-up requests into the artifact.

    Returns:
      The manifest, whose predict entries now hold the inputs that the SavedModel has, and the order in which its graph
      adds up rows.
    """
    inputs = read_signature_inputs(artifact)
    meta_graph = serving_graph(read_saved_model(artifact), artifact)
    signatures = dict(manifest.signatures)
    recorded: list[LoggedPrediction] = []
    warm: dict[str, list[Mapping[str, Array]]] = {}
    for name, entry in manifest.signatures.items():
        if entry.kind == "lookup":
            warm[name] = list(lookup_requests(artifact, manifest, entry, inputs[name]))
            continue
        described = parts.predict[name]
        predict = predict_entry(source.spec, tensor_features(described), list(inputs[name]))
        signatures[name] = with_summations(predict, meta_graph, name)
        keys = read_keys(artifact, manifest, _id_dtypes(source, inputs[name]))
        requests = list(predict_requests(manifest, source.spec, described, inputs[name], keys))
        recorded += [LoggedPrediction(name, request, source.predict(name, request)) for request in requests]
        warm[name] = list(requests[:1])
    if recorded:
        write_predictions(artifact / RECORDED_PATH, recorded)
    if warmup:
        write_warmup(artifact, warm)
    return dataclasses.replace(manifest, signatures=signatures)


def _id_dtypes(source: ExportSource, inputs: Mapping[str, InputInfo]) -> dict[str, str]:
    # A signature of tf.Examples has no input for a feature alone; then the feature's ids have the dtype of its keys.
    dtypes = {}
    for feature in source.spec.features:
        info = inputs.get(feature.ids_input)
        dtypes[feature.name] = feature.id_dtype if info is None else info.dtype
    return dtypes


def lookup_requests(
    artifact: Path, manifest: Manifest, entry: SignatureEntry, inputs: Mapping[str, InputInfo]
) -> list[dict[str, Array]]:
    # One request of 1 row, or one of each static batch size. Weights are left empty.
    id_dtypes = {name: inputs[feature.ids].dtype for name, feature in entry.features.items()}
    writer = CaseWriter(manifest, entry, read_keys(artifact, manifest, id_dtypes), id_dtypes)
    cases = (case.inputs(entry) for case in writer.predict_cases(entry.batch_sizes or (1,)))
    return [{name: _cast(array, inputs[name].dtype) for name, array in case.items()} for case in cases]
