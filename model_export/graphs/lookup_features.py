"""Derives a signature's manifest entry from a ModelSpec, for either lookup device; imports no TensorFlow.

>>> from model_export.spec.features import TableSpec
>>> spec = ModelSpec((TableSpec("film", 9, 2),), (FeatureSpec("seen", "film", is_ragged=True, max_ids_per_row=4),))
>>> lookup_entry(spec, "tpu_tensor_core", batch_sizes=(1, 8)).features["seen"].max_ids_per_row
4
>>> lookup_entry(spec, "cpu").features["seen"].mean_divisor
'sum_weights'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from model_export.errors import ExportError
from model_export.graphs.signature_names import LOOKUP, LOOKUP_TENSOR_CORE
from model_export.graphs.source import PredictSignature
from model_export.spec.features import FeatureSpec, ModelSpec
from service.artifact.manifest import LookupDevice, LookupFeature, SignatureEntry

WireDtype = Literal["string", "int64", "int32"]
SIGNATURE_OF_DEVICE: dict[LookupDevice, str] = {"cpu": LOOKUP, "tpu_tensor_core": LOOKUP_TENSOR_CORE}


def lookup_entry(
    spec: ModelSpec, device: LookupDevice, *, batch_sizes: Sequence[int] = (), features: Sequence[str] | None = None
) -> SignatureEntry:
    """Returns the manifest entry of a lookup signature.

    Args:
      batch_sizes: ascending static sizes of the padded lookup; ignored by the cpu lookup.
      features: names of the features; None: all.

    Raises:
      ExportError: the sizes are not ascending, or a feature's combiner is sqrtn on the tensor core.
    """
    chosen = [f for f in spec.features if features is None or f.name in features]
    if device == "cpu":
        return SignatureEntry("lookup", {f.name: _cpu(spec, f) for f in chosen}, "cpu")
    sizes = tuple(batch_sizes)
    if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
        raise ExportError(f"batch sizes {list(sizes)} are not an ascending list of positive integers")
    return SignatureEntry("lookup", {f.name: _tensor_core(spec, f) for f in chosen}, "tpu_tensor_core", sizes)


def predict_entry(spec: ModelSpec, features: Sequence[str], inputs: Sequence[str] = ()) -> SignatureEntry:
    """Returns the manifest entry of a predict signature, which runs the model's graph.

    Args:
      features: names of the features whose ids are inputs.
      inputs: the signature's inputs by name; a feature has weights if its weights input is among them.
    """
    entries = {}
    for feature in (spec.feature(name) for name in features):
        weights = feature.weights_input if feature.weights_input in inputs else None
        entries[feature.name] = _feature(spec, feature, weights=weights, output=None)
    return SignatureEntry("predict", entries)


def tensor_features(signature: PredictSignature) -> tuple[str, ...]:
    """Returns the names of a predict signature's features with tensor inputs: none if it takes tf.Examples."""
    return () if signature.examples_input is not None else signature.features


def id_dtype(feature: FeatureSpec, device: LookupDevice | None) -> WireDtype:
    """Returns the dtype of a feature's ids input: of its keys, or for row numbers int32 (tensor core) or int64."""
    if feature.vocabulary is not None and not feature.sends_rows:
        return feature.vocabulary.key_dtype
    return "int32" if device == "tpu_tensor_core" else "int64"


def _cpu(spec: ModelSpec, feature: FeatureSpec) -> LookupFeature:
    return _feature(spec, feature, weights=feature.weights_input, output=feature.name)


def _tensor_core(spec: ModelSpec, feature: FeatureSpec) -> LookupFeature:
    if spec.combiner_of(feature) == "sqrtn":
        raise ExportError(
            f"feature {feature.name!r}: the tpu_tensor_core lookup combines by sum or mean, table "
            f"{feature.table!r} by sqrtn; export it with lookup_device='cpu'"
        )
    return LookupFeature(
        ids=feature.ids_input,
        row_splits=feature.row_splits_input,
        weights=feature.weights_input,
        output=feature.name,
        combiner=spec.combiner_of(feature),
        on_bad_id=feature.on_bad_id,
        default_row=feature.default_id,
        mean_divisor="at_least_one",
        # A sequence has no K (largest number of ids in a row), because it is cut at max_sequence_length.
        max_ids_per_row=None if feature.max_sequence_length else feature.max_ids_per_row,
        on_too_many_ids=feature.on_too_many_ids,
        on_nonpositive_weight=feature.on_nonpositive_weight,
        max_sequence_length=feature.max_sequence_length or None,
    )


def _feature(spec: ModelSpec, feature: FeatureSpec, *, weights: str | None, output: str | None) -> LookupFeature:
    return LookupFeature(
        ids=feature.ids_input,
        row_splits=feature.row_splits_input,
        weights=weights,
        output=output,
        combiner=spec.combiner_of(feature),
        on_bad_id=feature.on_bad_id,
        default_row=feature.default_id,
        on_nonpositive_weight=feature.on_nonpositive_weight,
        max_sequence_length=feature.max_sequence_length or None,
    )
