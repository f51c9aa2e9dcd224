"""Checks an artifact: files against manifest and index, then every signature against the numpy oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.export import oracle
from model_export.export.integrity import check_integrity
from model_export.export.parity_cases import Case, lookup_cases, predict_cases
from model_export.export.signature_names import EXAMPLES_INPUT, PREDICT, PREDICT_EXAMPLES, RATING_OUTPUT
from model_export.tensorflow_setup import tf
from service.core.manifest import LookupFeature, Manifest, SignatureEntry
from service.core.types import Array, RaggedIds

# float32 sums of tens of terms against float64: a wrong row or divisor is off by far more.
_RELATIVE_TOLERANCE = 1e-5
# A string that is in no vocabulary, for row 0.
_STRANGER = "no such word"


@dataclass(frozen=True, slots=True)
class Parity:
    """How far one signature is from the oracle.

    max_relative_error: the largest difference of a case over the largest value expected in it, over all cases.
    """

    cases: int
    max_absolute_error: float
    max_relative_error: float


def verify_artifact(artifact: Path) -> dict[str, Parity]:
    """Runs all checks on a finished artifact and returns the parity of each signature.

    Raises:
      ExportError, ArtifactError: a file, an index entry or an answer differs from what it should be.
    """
    manifest = Manifest.read(artifact)
    if manifest is None:
        raise ExportError(f"{artifact} has no lookup manifest; `model-export` did not write it")
    check_integrity(artifact, manifest)
    return check_parity(artifact, manifest)


def check_parity(artifact: Path, manifest: Manifest) -> dict[str, Parity]:
    """Loads the SavedModel and compares every signature of the manifest with the oracle.

    Raises:
      ExportError: a signature is missing, fails, or differs by more than 1e-5 of the largest expected value.
    """
    try:
        loaded = tf.saved_model.load(str(artifact))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise ExportError(f"TensorFlow can not load {artifact}: {error}") from error
    if set(loaded.signatures) != set(manifest.signatures):
        names = sorted(loaded.signatures)
        raise ExportError(f"the SavedModel has signatures {names}, the manifest {sorted(manifest.signatures)}")
    tables = oracle.read_tables(artifact, manifest)
    tower = oracle.read_tower(artifact)
    answers: dict[str, Iterator[tuple[dict[str, Any], dict[str, Array]]]] = {
        name: _lookup_answers(loaded.signatures[name], manifest, signature, tables)
        for name, signature in manifest.signatures.items()
        if signature.kind == "lookup"
    }
    predict = manifest.signatures[PREDICT]
    answers[PREDICT] = _predict_answers(loaded.signatures[PREDICT], manifest, predict, tables, tower)
    words = {
        name: ["", *(artifact / entry.file).read_text(encoding="utf-8").splitlines()]
        for name, entry in manifest.vocabularies.items()
    }
    answers[PREDICT_EXAMPLES] = _example_answers(
        loaded.signatures[PREDICT_EXAMPLES], manifest, predict, tables, tower, words
    )
    return {name: _compare(name, pairs) for name, pairs in answers.items()}


def parity_json(parity: Mapping[str, Parity]) -> dict[str, Any]:
    """Returns the manifest's parity object."""
    return {name: asdict(entry) for name, entry in parity.items()}


def _compare(name: str, answers: Iterator[tuple[dict[str, Any], dict[str, Array]]]) -> Parity:
    cases, absolute, relative = 0, 0.0, 0.0
    for got, expected in answers:
        cases += 1
        if set(got) != set(expected):
            raise ExportError(f"signature {name!r} answers {sorted(got)}, expected {sorted(expected)}")
        for output, wanted in expected.items():
            actual = got[output].numpy()
            if actual.shape != wanted.shape:
                raise ExportError(
                    f"signature {name!r}, output {output!r}: shape {actual.shape}, expected {wanted.shape}"
                )
            if not wanted.size:
                continue
            error = float(np.abs(actual - wanted).max())
            scale = float(np.abs(wanted).max())
            # Written so that a NaN fails it.
            if not error <= _RELATIVE_TOLERANCE * max(scale, 1e-3):
                raise ExportError(f"signature {name!r}, output {output!r} differs from the oracle by {error:.3g}")
            absolute = max(absolute, error)
            relative = max(relative, error / scale if scale else 0.0)
    return Parity(cases, absolute, relative)


def _lookup_answers(
    function: Any, manifest: Manifest, signature: SignatureEntry, tables: Mapping[str, Array]
) -> Iterator[tuple[dict[str, Any], dict[str, Array]]]:
    for case in lookup_cases(manifest, signature):
        inputs: dict[str, Array] = {}
        for key, feature in signature.features.items():
            inputs |= _wire(feature, case[key])
        expected = {
            feature.output or key: _vectors(tables[manifest.features[key].table], feature, case[key])
            for key, feature in signature.features.items()
        }
        yield _call(function, inputs), expected


def _predict_answers(
    function: Any,
    manifest: Manifest,
    signature: SignatureEntry,
    tables: Mapping[str, Array],
    tower: Mapping[str, Array],
) -> Iterator[tuple[dict[str, Any], dict[str, Array]]]:
    for case in predict_cases(manifest, signature):
        inputs: dict[str, Array] = {}
        for key, feature in signature.features.items():
            inputs |= _wire(feature, case[key])
        yield _call(function, inputs), _expected_rating(manifest, signature, tables, tower, case)


def _example_answers(
    function: Any,
    manifest: Manifest,
    signature: SignatureEntry,
    tables: Mapping[str, Array],
    tower: Mapping[str, Array],
    words: Mapping[str, list[str]],
) -> Iterator[tuple[dict[str, Any], dict[str, Array]]]:
    for case in predict_cases(manifest, signature):
        examples = tf.constant([row.SerializeToString() for row in _examples(manifest, case, words)])
        yield function(**{EXAMPLES_INPUT: examples}), _expected_rating(manifest, signature, tables, tower, case)


def _expected_rating(
    manifest: Manifest,
    signature: SignatureEntry,
    tables: Mapping[str, Array],
    tower: Mapping[str, Array],
    case: Case,
) -> dict[str, Array]:
    vectors = {
        key: _vectors(tables[manifest.features[key].table], feature, case[key])
        for key, feature in signature.features.items()
    }
    return {RATING_OUTPUT: oracle.predicted(tower, vectors)}


def _vectors(table: Array, feature: LookupFeature, ids: Array | RaggedIds) -> Array:
    if isinstance(ids, RaggedIds):
        assert feature.combiner is not None  # the manifest pairs it with row_splits
        return oracle.combined(table, ids, feature.combiner, feature.mean_divisor)
    return table[ids].astype(np.float64)


def _wire(feature: LookupFeature, ids: Array | RaggedIds) -> dict[str, Array]:
    if not isinstance(ids, RaggedIds):
        return {feature.ids: ids}
    inputs = {feature.ids: ids.values, feature.row_splits or "": ids.row_splits}
    if feature.weights:
        inputs[feature.weights] = np.zeros(0, np.float32) if ids.weights is None else ids.weights
    return inputs


def _call(function: Any, inputs: Mapping[str, Array]) -> dict[str, Any]:
    specs = function.structured_input_signature[1]
    if set(specs) != set(inputs):
        raise ExportError(f"a signature of the SavedModel takes {sorted(specs)}, the manifest says {sorted(inputs)}")
    outputs: dict[str, Any] = function(**{name: tf.constant(inputs[name], specs[name].dtype) for name in specs})
    return outputs


def _examples(manifest: Manifest, case: Case, words: Mapping[str, list[str]]) -> Iterator[Any]:
    rows = next(len(ids) for ids in case.values() if not isinstance(ids, RaggedIds))
    for row in range(rows):
        fields = {}
        for key, ids in case.items():
            if isinstance(ids, RaggedIds):
                values = ids.values[ids.row_splits[row] : ids.row_splits[row + 1]].tolist()
            else:
                values = [int(ids[row])]
            # Every other unknown id is left out instead of sent, which must mean the same.
            if values == [0] and not isinstance(ids, RaggedIds) and row % 2:
                continue
            fields[key] = _field(values, words.get(manifest.features[key].vocabulary or ""))
        yield tf.train.Example(features=tf.train.Features(feature=fields))


def _field(ids: list[int], words: list[str] | None) -> Any:
    if words is None:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
    strings = [(words[i] if i else _STRANGER).encode() for i in ids]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=strings))
