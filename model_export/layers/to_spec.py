"""Converts a layer's feature_config to a ModelSpec whose lookups give the results of serving_embedding_lookup.

The policies depend on the form in which the layer gets its ids:

| ids | id < 0 | id >= V | weight <= 0 |
|---|---|---|---|
| dense, ragged | error | error | kept |
| sparse | left out | error | left out, unless the combiner is sum |
| sparse sequence, or validate_weights_and_indices=False | error | error | kept |

Source: TensorFlow 2.21, python/tpu/tpu_embedding_for_serving.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args

from model_export.errors import ADOPT_IT, ExportError
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import TooManyPolicy

# The forms of a vocabulary: a VocabularySpec, a sequence of keys (key i is row i), or a StringLookup or IntegerLookup
# layer.
Vocabulary = VocabularySpec | Sequence[str] | Sequence[int] | Any


def vocabulary_spec(feature: str, vocabulary: Vocabulary) -> VocabularySpec:
    """Returns the VocabularySpec for a feature, made from a list of keys or a Keras lookup layer.

    With a list of keys any other key is an error. With a Keras lookup layer the row of unknown keys (num_oov_indices=1)
    becomes oov_id; with num_oov_indices=0 an unknown key is an error.

    Raises:
      ExportError: a VocabularySpec can not describe the layer (a mask, several unknown rows, one-hot output).
    """
    if isinstance(vocabulary, VocabularySpec):
        return vocabulary
    lookups = (tf.keras.layers.StringLookup, tf.keras.layers.IntegerLookup)
    if isinstance(vocabulary, lookups):
        return _of_layer(feature, vocabulary)
    try:
        return VocabularySpec(tuple(vocabulary))
    except (TypeError, ValueError) as error:
        raise ExportError(f"vocabulary of feature {feature!r}: {error}") from error


def _of_layer(feature: str, layer: Any) -> VocabularySpec:
    config = layer.get_config()
    refused = {"mask_token": (None,), "num_oov_indices": (0, 1), "output_mode": ("int",), "invert": (False,)}
    for field, allowed in refused.items():
        if config[field] not in allowed:
            raise ExportError(
                f"vocabulary of feature {feature!r}: {field}={config[field]!r}, a lookup can say only "
                f"{' or '.join(map(repr, allowed))}; {ADOPT_IT}"
            )
    first = config["num_oov_indices"]
    keys = layer.get_vocabulary(include_special_tokens=False)
    words: Any = tuple(int(key) if isinstance(layer, tf.keras.layers.IntegerLookup) else str(key) for key in keys)
    try:
        return VocabularySpec(words, first_id=first, oov_id=0 if first else None)
    except ValueError as error:
        raise ExportError(f"vocabulary of feature {feature!r}: {error}") from error


# The form in which a layer gets the ids of a feature: a dense [B] (or [B, 1]), a RaggedTensor or a SparseTensor.
IdsKind = Literal["dense", "ragged", "sparse"]


def model_spec(
    feature_config: Any,
    *,
    kinds: Mapping[str, IdsKind] | None = None,
    max_ids_per_row: Mapping[str, int] | int = 1,
    vocabularies: Mapping[str, Vocabulary] | None = None,
    names: Mapping[str, str] | None = None,
    on_too_many_ids: TooManyPolicy = "error",
) -> ModelSpec:
    """Makes a ModelSpec of TensorFlow's FeatureConfigs, which may be nested.

    A feature is named by its path in the nest, joined with _: {"user": {"id": ...}} gives user_id. Characters that a
    SavedModel's inputs can not have become _.

    Args:
      kinds: feature -> form of its ids; default: ragged.
      max_ids_per_row: K of the tensor-core lookup, one for all ragged features or by feature. A sequence has its own
        length.
      vocabularies: feature -> the keys of its table's rows (layers.vocabularies).
      names: feature -> new name; the other arguments use the new names.
      on_too_many_ids: what the tensor-core lookup does with more than K ids: "error", or "truncate" as a TPU would.

    Raises:
      ExportError: a feature can not be a lookup, or an argument names one that does not exist.
    """
    configs = named_features(feature_config, names)
    kinds, vocabularies = dict(kinds or {}), dict(vocabularies or {})
    widths = max_ids_per_row if isinstance(max_ids_per_row, Mapping) else {}
    for argument, given in (("kinds", kinds), ("vocabularies", vocabularies), ("max_ids_per_row", widths)):
        unknown = sorted(set(given) - set(configs))
        if unknown:
            raise ExportError(f"{argument} names {unknown}; the features are {sorted(configs)}")
    tables = table_names(feature_config)
    try:
        features = tuple(
            _feature(
                name,
                config,
                tables[id(config.table)],
                kind=kinds.get(name, "ragged"),
                width=widths.get(name, 1) if isinstance(max_ids_per_row, Mapping) else max_ids_per_row,
                vocabulary=vocabularies.get(name),
                on_too_many_ids=on_too_many_ids,
            )
            for name, config in configs.items()
        )
        used = {id(config.table): config.table for config in configs.values()}.values()
        return ModelSpec(tuple(_table(tables[id(table)], table) for table in used), features)
    except ValueError as error:
        raise ExportError(str(error)) from error


def named_features(feature_config: Any, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Maps feature names to FeatureConfigs, in the nest's order; raises ExportError if two get one name."""
    found: dict[str, Any] = {}
    paths: dict[str, str] = {}
    renamed = dict(names or {})
    for path, config in flatten_with_paths(feature_config):
        # A single FeatureConfig, which is in no nest, has an empty path.
        name = input_name(path or config.name or config.table.name or "feature")
        name = renamed.pop(name, name)
        if name in found:
            raise ExportError(f"features {paths[name]!r} and {path!r} both become {name!r}; rename one with names=")
        found[name], paths[name] = config, path
    if renamed:
        raise ExportError(f"names renames {sorted(renamed)}; the features are {sorted(found)}")
    return found


def table_names(feature_config: Any) -> dict[int, str]:
    """Maps the id() of each TableConfig to the table's name; a table without a name is table_<position>, as in TFRS."""
    names: dict[int, str] = {}
    for config in tf.nest.flatten(feature_config):
        if id(config.table) not in names:
            names[id(config.table)] = input_name(config.table.name or f"table_{len(names)}")
    if len(set(names.values())) != len(names):
        raise ExportError(f"two tables become one name among {sorted(names.values())}; name them apart")
    return names


def flatten_with_paths(nest: Any) -> list[tuple[str, Any]]:
    """Returns (path, leaf) pairs in tf.nest's order; a path is keys and positions joined by /, and "" for the root."""
    if isinstance(nest, Mapping):
        entries = [(str(key), nest[key]) for key in sorted(nest)]
    elif isinstance(nest, tuple) and hasattr(nest, "_fields"):
        entries = list(zip(nest._fields, nest, strict=True))
    elif isinstance(nest, list | tuple):
        entries = [(str(position), part) for position, part in enumerate(nest)]
    else:
        return [("", nest)]
    return [
        (f"{key}/{path}" if path else key, leaf) for key, part in entries for path, leaf in flatten_with_paths(part)
    ]


def input_name(path: str) -> str:
    name = re.sub(r"[^a-zA-Z0-9]+", "_", path).strip("_")
    return name if name[:1].isalpha() else f"feature_{name}"


def _table(name: str, config: Any) -> TableSpec:
    if not isinstance(config.combiner, str):
        raise ExportError(f"table {name!r} has a combiner of its own making; lookups combine by sum, mean or sqrtn")
    if config.quantization_config is not None:
        raise ExportError(f"table {name!r} is quantized; lookups read float tables")
    return TableSpec(name, config.vocabulary_size, config.dim, cast(Any, config.combiner))


def _feature(
    name: str,
    config: Any,
    table: str,
    *,
    kind: IdsKind,
    width: int,
    vocabulary: Vocabulary | None,
    on_too_many_ids: TooManyPolicy,
) -> FeatureSpec:
    length = config.max_sequence_length or 0
    if kind not in get_args(IdsKind):
        raise ExportError(f"feature {name!r}: kind is {kind!r}, expected one of {get_args(IdsKind)}")
    if config.output_shape.rank:
        raise ExportError(
            f"feature {name!r} has output_shape {config.output_shape.as_list()}, which fixes its batch; export a layer "
            "made without it (the checkpoint is the same)"
        )
    if kind == "dense" and length:
        raise ExportError(f"feature {name!r} is a sequence; its ids are ragged or sparse, not dense")
    is_safe = kind == "sparse" and not length and config.validate_weights_and_indices
    return FeatureSpec(
        name,
        table,
        is_ragged=kind != "dense",
        max_ids_per_row=length or (width if kind != "dense" else 1),
        max_sequence_length=length,
        vocabulary=None if vocabulary is None else vocabulary_spec(name, vocabulary),
        on_bad_id="drop_negative" if is_safe else "error",
        on_nonpositive_weight="drop" if is_safe and config.table.combiner != "sum" else "keep",
        on_too_many_ids=on_too_many_ids,
    )
