"""The interface of a trained model that is exported (ExportSource), and the lookup signatures planned for it.

A source writes the SavedModel and computes reference predictions. The exporter does the rest, in the same way for every
source: manifest, parity of lookups, warm-up requests and the rename to a version. Imports no TensorFlow.

>>> from model_export.spec.features import TableSpec
>>> spec = ModelSpec((TableSpec("film", 9, 2),), (FeatureSpec("seen", "film", is_ragged=True, max_ids_per_row=4),))
>>> lookup_entry(spec, "tpu_tensor_core", batch_sizes=(1, 8)).features["seen"].max_ids_per_row
4
>>> lookup_entry(spec, "cpu").features["seen"].mean_divisor
'sum_weights'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from model_export.errors import ExportError
from model_export.graphs.reduced_table import ReducedTable
from model_export.spec.features import FeatureSpec, ModelSpec, VocabularySpec
from service.artifact.manifest import LookupDevice, LookupFeature, SignatureEntry, VocabularyEntry
from service.types import Array

LOOKUP = "lookup"
LOOKUP_TENSOR_CORE = "lookup_tpu_tensor_core"
PREDICT = "serving_default"
PREDICT_EXAMPLES = "serve_examples"
RATING_OUTPUT = "rating"
EXAMPLES_INPUT = "examples"
DEFAULT_BATCH_SIZES = (1, 8, 64, 512)
# Path in the artifact of the file with recorded requests and the trained model's answers.
RECORDED_PATH = "assets.extra/recorded_predictions"
# Path in the artifact of its checkpoint, without ".index".
VARIABLES_PREFIX = "variables/variables"
# Dtypes of variables that adopt accepts as tables, whether or not a spec is given.
ADOPTED_DTYPES = ("float32", "float16", "bfloat16", "float64")


def lookup_devices(lookup_device: Any) -> tuple[LookupDevice, ...]:
    named = (lookup_device,) if isinstance(lookup_device, str) else tuple(lookup_device)
    choices: tuple[LookupDevice, ...] = get_args(LookupDevice)
    if named == ("both",):
        return choices
    if not named or len(set(named)) != len(named) or not set(named) <= set(choices):
        raise ExportError(f"lookup_device is {lookup_device!r}, expected 'cpu', 'tpu_tensor_core' or a list of both")
    return named


@dataclass(frozen=True, slots=True)
class PredictSignature:
    """A signature that runs the model's own graph, and the form of its inputs.

    features: names of the features whose ids are inputs, with the input names and dtypes of their FeatureSpec.
    examples_input: the input of serialized tf.Examples, if the signature has one; each feature is then a field of its
        own name.
    dense_fields: float fields of such a tf.Example -> their length.
    weight_fields: feature -> float field of such a tf.Example that holds one weight per id.
    row_inputs: any other input of row numbers -> their table; the model itself decides about ids without a row.
    The exporter's check of the signature feeds random numbers of the right dtype to any other input.
    """

    features: tuple[str, ...] = ()
    examples_input: str | None = None
    dense_fields: Mapping[str, int] = field(default_factory=dict)
    weight_fields: Mapping[str, str] = field(default_factory=dict)
    row_inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedParts:
    """The checkpoint keys of tables, and the predict signatures, of a SavedModel that a source wrote.

    table_variables: table of the spec -> its key in variables/variables.index.
    table_scales: the same for the scales of int8 and int4 tables.
    """

    table_variables: Mapping[str, str]
    predict: Mapping[str, PredictSignature]
    table_scales: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """The lookup signatures that a source must write into its SavedModel, beside its predict signatures.

    lookups: signature name -> its manifest entry; graphs.lookup_graph builds a lookup's graph from it.
    vocabulary_files: feature -> file with one key per line, which becomes an asset of the same name.
    export_to_tpu: write a {serve,tpu} MetaGraph too, over the same variables.
    reduced: tables in fewer bits for the lookups to read; predictions read the trained tables.
    """

    lookups: Mapping[str, SignatureEntry]
    vocabulary_files: Mapping[str, Path]
    export_to_tpu: bool = False
    reduced: Mapping[str, ReducedTable] = field(default_factory=dict)


class ExportSource(Protocol):
    """The interface of a trained model that the exporter can write and check. Concurrency: one caller at a time."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Returns what the manifest records of the model's training as JSON values: data, settings, history, errors."""
        ...

    @property
    def predict_names(self) -> Sequence[str]: ...

    def save(self, folder: Path, plan: LookupPlan, predict: Sequence[str]) -> SavedParts:
        """Writes a stock SavedModel into a folder, with the plan's lookup signatures and the named predict signatures.

        Raises:
          ExportError: the model can not be exported as planned.
        """
        ...

    def table_rows(self, table: str, start: int, stop: int) -> Array:
        """Returns rows [start, stop) of a trained table, [stop - start, D], with which saved rows are compared."""
        ...

    def predict(self, signature: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Computes the outputs of the model in memory, with which the exporter compares the saved signature's."""
        ...


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


def vocabulary_entry(words: VocabularySpec, file: str) -> VocabularyEntry:
    return VocabularyEntry(
        file=file,
        size=len(words.keys),
        first_id=words.first_id,
        oov_id=words.oov_id,
        num_oov_buckets=words.num_oov_buckets,
        on_oov=words.on_oov,
        key_dtype=words.key_dtype,
    )


def tensor_features(signature: PredictSignature) -> tuple[str, ...]:
    return () if signature.examples_input is not None else signature.features


def id_dtype(feature: FeatureSpec, device: LookupDevice | None) -> WireDtype:
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
    return replace(
        _cpu(spec, feature),
        mean_divisor="at_least_one",
        # A sequence has no K (largest number of ids in a row), because it is cut at max_sequence_length.
        max_ids_per_row=None if feature.max_sequence_length else feature.max_ids_per_row,
        on_too_many_ids=feature.on_too_many_ids,
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
