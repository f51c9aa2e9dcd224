"""Checks a SavedModel's signature against its manifest entry; adds the entry's bounds and shapes to its SignatureSpec.

The server and `model-export verify` use the same rules, so the server serves a signature that `verify` accepts from the
tables. A signature that breaks a rule is run in TensorFlow; all others are served as usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from service.artifact.manifest import BadIdPolicy, LookupFeature, Manifest, SignatureEntry
from service.errors import ArtifactError
from service.types import WEIGHTS_SUFFIX, RaggedNames, SignatureSpec, TensorSpec, Vocabulary

Shape = tuple[int | None, ...]

_ID_DTYPES = ("int64", "int32")
_BOUNDS: Mapping[BadIdPolicy, Literal["both", "upper", "none"]] = {"error": "both", "drop_negative": "upper"}
# Table dtypes whose stored rows a lookup returns without conversion, if the output has the same dtype and the feature
# has neither a combiner nor a max_norm.
_ANSWERED_AS_STORED = ("float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class OutputRule:
    """The features in one output of a lookup, and the output's expected shape and dtype.

    parts: the features whose vectors the output holds side by side.
    shape: of the output; a size that the SignatureDef leaves open is filled in from the manifest, if it has the size.
    """

    parts: tuple[str, ...]
    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class LookupRules:
    """The form of a lookup signature: output -> its features, shape and dtype; feature -> the rank of its ids."""

    outputs: Mapping[str, OutputRule]
    ids_ranks: Mapping[str, int]


def signature_faults(manifest: Manifest, signatures: Mapping[str, SignatureSpec]) -> dict[str, str]:
    """Returns signature -> why it contradicts its manifest entry, so that only TensorFlow can run it; {} for none."""
    faults = {}
    for name, entry in manifest.signatures.items():
        try:
            if name not in signatures:
                raise ArtifactError(f"manifest describes signature {name!r}, which saved_model.pb does not have")
            described(signatures[name], entry, manifest, {})
        except ArtifactError as error:
            faults[name] = error.message
    return faults


def described(
    spec: SignatureSpec, entry: SignatureEntry, manifest: Manifest, vocabularies: Mapping[str, Vocabulary]
) -> SignatureSpec:
    """Returns a signature's spec with the manifest's facts on inputs and outputs, such as vocabularies and id bounds.

    Raises:
      ArtifactError: manifest and signature do not agree.
    """
    inputs = dict(spec.inputs)
    # Name of an input of ids -> the first feature that reads this input.
    readers: dict[str, str] = {}
    for name, lookup in entry.features.items():
        _check_vocabulary(name, manifest)
        _check_inputs(spec, entry, name, manifest)
        feature = manifest.features[name]
        # An id that is not looked up may be any: one that its weight leaves out, or one beyond the end of a cut row.
        is_dropped = lookup.weights is not None and lookup.on_nonpositive_weight == "drop"
        is_cut = lookup.max_sequence_length is not None or lookup.on_too_many_ids == "truncate"
        described_input = replace(
            inputs[lookup.ids],
            vocabulary_size=manifest.tables[feature.table].vocabulary_size,
            bounds="none" if is_dropped or is_cut else _BOUNDS.get(lookup.on_bad_id, "none"),
            vocabulary=vocabularies.get(name),
        )
        if (other := readers.setdefault(lookup.ids, name)) != name:
            described_input = _of_both(entry, manifest, (other, name), inputs[lookup.ids], described_input)
        inputs[lookup.ids] = described_input
    ragged_names = _ragged_names(spec, entry)
    if entry.kind == "predict":
        return replace(spec, kind="predict", inputs=inputs, ragged_names=ragged_names)
    rules = lookup_rules(spec, entry, manifest).outputs
    named = {part for f in entry.features.values() for part in (f.ids, f.row_splits, f.weights) if part}
    if set(inputs) != named or set(spec.outputs) != set(rules):
        raise ArtifactError(f"signature {spec.name!r}: its inputs or outputs are not all described by the manifest")
    return replace(
        spec,
        kind="lookup",
        # All inputs of a lookup are optional: a lookup returns only the outputs whose features were sent.
        inputs={name: replace(tensor, is_optional=True) for name, tensor in inputs.items()},
        outputs={name: replace(tensor, shape=rules[name].shape) for name, tensor in spec.outputs.items()},
        ragged_names=ragged_names,
        output_ids={name: tuple(entry.features[part].ids for part in rules[name].parts) for name in spec.outputs},
    )


def _of_both(
    entry: SignatureEntry, manifest: Manifest, features: tuple[str, str], one: TensorSpec, other: TensorSpec
) -> TensorSpec:
    """Returns the spec of an input of ids that two features read: ids must be below the smaller V of both tables.

    Features that do not check ids are left out. Negative ids are allowed if one of the features allows them.

    Keys are mapped once for an input, so features of a lookup that share one must share a vocabulary too.
    """
    words = {manifest.features[name].vocabulary for name in features}
    if len(words) > 1:
        if entry.kind == "lookup":
            raise ArtifactError(f"features {list(features)} read input {one.name!r} by different vocabularies")
        return replace(one, vocabulary=None, bounds="none")
    if "none" in (one.bounds, other.bounds):
        return other if one.bounds == "none" else one
    smaller, larger = sorted((one, other), key=lambda tensor: tensor.vocabulary_size or 0)
    return replace(smaller, bounds=smaller.bounds if smaller.bounds == larger.bounds else "upper")


def lookup_rules(spec: SignatureSpec, entry: SignatureEntry, manifest: Manifest) -> LookupRules:
    """Returns a lookup signature's LookupRules; raises ArtifactError if the graph's outputs do not fit the manifest."""
    parts = {lookup.output: (name,) for name, lookup in entry.features.items() if lookup.output is not None}
    rules = {output: _rule(spec, entry, manifest, output, of) for output, of in {**parts, **entry.concatenated}.items()}
    for name in entry.features:
        dtypes = {rule.dtype for rule in rules.values() if name in rule.parts}
        if len(dtypes) > 1:
            raise ArtifactError(f"signature {spec.name!r}: feature {name!r} has outputs of {_either(sorted(dtypes))}")
    ids_ranks = {name: len(spec.inputs[lookup.ids].shape or (None,)) for name, lookup in entry.features.items()}
    return LookupRules(rules, ids_ranks)


def _rule(
    spec: SignatureSpec, entry: SignatureEntry, manifest: Manifest, output: str, parts: tuple[str, ...]
) -> OutputRule:
    # The description of the output gets the manifest's shape and not the graph's, because answers have that shape and
    # the limit on answer bytes is computed from it. So a size that the graph leaves open is filled in, and a size that
    # differs from the graph's is refused.
    found = spec.outputs.get(output)
    if found is None:
        raise ArtifactError(f"signature {spec.name!r} has no output {output!r}, which its manifest names")
    shapes = _shapes([_part_shape(spec, entry.features[part], manifest, part) for part in parts])
    if not shapes:
        raise ArtifactError(
            f"signature {spec.name!r}: output {output!r} joins {', '.join(parts)}, whose vectors differ in rank"
        )
    dtype = _dtype(found, entry, manifest, parts)
    fitting = [shape for shape in shapes if _fits(found.shape, shape)]
    if not fitting or found.dtype != dtype:
        raise ArtifactError(
            f"signature {spec.name!r}: output {output!r} is {found.dtype} {_shown(found.shape)}, its manifest says "
            f"{dtype} {_shown(shapes[0])}"
        )
    if found.numpy_dtype is None:
        raise ArtifactError(
            f"signature {spec.name!r}: output {output!r} is {dtype}, which needs the package ml_dtypes; the extra "
            "[tensorflow] brings it"
        )
    first = None if found.shape is None else found.shape[0]
    return OutputRule(parts, (first, *fitting[0][1:]), dtype)


def _part_shape(spec: SignatureSpec, lookup: LookupFeature, manifest: Manifest, feature: str) -> Shape:
    dim = manifest.tables[manifest.features[feature].table].embedding_dim
    if lookup.max_sequence_length is not None:
        return None, lookup.max_sequence_length, dim
    ids = spec.inputs[lookup.ids].shape or (None,)
    return (None, dim) if lookup.combiner is not None or len(ids) == 1 else (None, ids[1], dim)


def _shapes(parts: list[Shape]) -> list[Shape]:
    """Returns the allowed shapes of an output that joins several features' vectors: side by side, or flattened."""
    found: list[Shape] = []
    between = {part[1] for part in parts if len(part) == 3}
    if all(len(part) == 3 for part in parts) and len(between - {None}) <= 1:
        found.append((None, next(iter(between - {None}), None), sum(part[2] or 0 for part in parts)))
    widths = [part[1:] for part in parts if None not in part[1:]]
    if len(widths) == len(parts):
        found.append((None, sum(math.prod(size or 0 for size in width) for width in widths)))
    return found


def _fits(saved: Shape | None, shape: Shape) -> bool:
    return saved is None or (
        len(saved) == len(shape)
        and all(None in (size, wanted) or size == wanted for size, wanted in zip(saved[1:], shape[1:], strict=True))
    )


def _dtype(found: TensorSpec, entry: SignatureEntry, manifest: Manifest, parts: tuple[str, ...]) -> str:
    """Returns the dtype of a lookup's output: the tables' dtype if rows are returned as stored, else float32.

    Raises ArtifactError if rows of float64 would not be returned as stored.
    """
    stored = {manifest.tables[manifest.features[part].table].dtype for part in parts}
    lookups = [entry.features[part] for part in parts]
    is_copied = all(lookup.combiner is None and lookup.max_norm is None for lookup in lookups)
    if is_copied and stored in ({found.dtype}, {"float64"}) and stored <= set(_ANSWERED_AS_STORED):
        return next(iter(stored))
    if "float64" in stored:
        raise ArtifactError(
            f"output {found.name!r}: rows of float64 can only be answered as they are stored; combiners, max_norm and "
            "joined outputs need float32"
        )
    return "float32"


def _check_inputs(spec: SignatureSpec, entry: SignatureEntry, feature: str, manifest: Manifest) -> None:
    lookup = entry.features[feature]
    is_lookup, is_ragged = entry.kind == "lookup", lookup.row_splits is not None
    vocabulary = manifest.vocabularies.get(manifest.features[feature].vocabulary or "")
    has_strings = vocabulary is not None and vocabulary.key_dtype == "string"
    for name, dtypes, ranks in (
        (lookup.ids, (*_ID_DTYPES, "string") if has_strings else _ID_DTYPES, (1,) if is_ragged else (1, 2)),
        (lookup.row_splits, _ID_DTYPES, (1,)),
        (lookup.weights, ("float32",), (1,)),
    ):
        if name is None:
            continue
        found = spec.inputs.get(name)
        if found is None:
            raise ArtifactError(
                f"signature {spec.name!r} has no input {name!r}, which its manifest names; "
                f"it takes {sorted(spec.inputs)}"
            )
        if found.dtype not in dtypes:
            raise ArtifactError(f"signature {spec.name!r}: input {name!r} is {found.dtype}, expected {_either(dtypes)}")
        if is_lookup and (found.shape is None or len(found.shape) not in ranks):
            raise ArtifactError(f"signature {spec.name!r}: input {name!r} is not of rank {_either(map(str, ranks))}")
    for other, found_lookup in entry.features.items() if is_lookup else ():
        if found_lookup.ids == lookup.ids and (
            manifest.features[other].vocabulary != manifest.features[feature].vocabulary
        ):
            raise ArtifactError(
                f"signature {spec.name!r}: features {other!r} and {feature!r} read input {lookup.ids!r} by different "
                "vocabularies"
            )


def _check_vocabulary(feature: str, manifest: Manifest) -> None:
    entry = manifest.features[feature]
    vocabulary, rows = manifest.vocabularies.get(entry.vocabulary or ""), manifest.tables[entry.table].vocabulary_size
    if vocabulary is not None and vocabulary.last_id >= rows:
        raise ArtifactError(
            f"feature {feature!r}: vocabulary {entry.vocabulary!r} reaches id {vocabulary.last_id} of {rows} rows"
        )


def _ragged_names(spec: SignatureSpec, entry: SignatureEntry) -> tuple[RaggedNames, ...]:
    """Returns each ragged feature with the names of its inputs: the manifest's, else by convention (x__row_splits).

    Lookups trust row splits, so each pair of ids and row splits that a lookup reads must be here: the server
    checks the splits of all pairs that are listed here.
    """
    found: dict[tuple[str, str, str | None], list[str]] = {}
    for name, lookup in sorted(entry.features.items()):
        if lookup.row_splits is not None:
            found.setdefault((lookup.ids, lookup.row_splits, lookup.weights), []).append(name)
    names = []
    for (ids, row_splits, weights), features in found.items():
        if weights is None and any(other[:2] == (ids, row_splits) and other[2] for other in found):
            # No entry is added for this feature: another feature reads the same ids with weights, and the entry of that
            # feature already makes the server check the same row splits.
            continue
        name = _json_name(spec, features, ids, row_splits)
        unsent = name + WEIGHTS_SUFFIX if name + WEIGHTS_SUFFIX not in spec.inputs else ""
        names.append(RaggedNames(name, ids, row_splits, weights or unsent))
    parts = {part for one in names for part in one[1:]}
    return tuple(sorted([*names, *(one for one in spec.ragged_names if parts.isdisjoint(one[1:]))]))


def _json_name(spec: SignatureSpec, features: list[str], ids: str, row_splits: str) -> str:
    by_convention = {names[1:3]: names.feature for names in spec.ragged_names}.get((ids, row_splits))
    name = by_convention if by_convention is not None and len(features) > 1 else features[0]
    # If another input has the feature's name, a JSON request names the feature by its input of ids: the feature's name
    # means the other input.
    return name if name == ids or name not in spec.inputs else ids


def _either(words: Iterable[str]) -> str:
    return " or ".join(words)


def _shown(shape: Shape | None) -> str:
    return "of unknown rank" if shape is None else str(["?" if size is None else size for size in shape])
