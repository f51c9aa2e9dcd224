"""Plans the manifest of an adopted SavedModel, before its lookups are compared with numpy's (the oracle)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from model_export.adoption.discovery import Discovery
from model_export.adoption.spec import AdoptSpec, FittingSignature
from model_export.answers.opened_graph import OpenedGraph
from model_export.errors import ExportError
from model_export.graphs.signature_runner import InputInfo
from model_export.graphs.source import DEFAULT_BATCH_SIZES, lookup_entry, vocabulary_entry
from model_export.parity.oracle import Keys
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from service.artifact.manifest import FeatureEntry, GraphRun, LookupDevice, LookupFeature, SignatureEntry, Summation


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    """The contents of a manifest before its lookups are compared with numpy's (the oracle).

    tables: name -> checkpoint key. vocabularies: by name; features that have the same keys share one.
    reasons: signature -> why it is no lookup. inexact: signatures whose sums differ in the last bits.
    required: signatures that must be lookups; any other lookup that fails the comparison becomes a predict.
    added: devices to add a lookup signature for; None: "cpu" if no signature of the SavedModel is a lookup.
    added_model: tables and features of the added signatures; None if no lookup signature can be added.
    is_declared: whether a user's spec, and not the graph, is where the lookups come from.
    summations: feature -> the order in which the model's graph adds up its rows.
    """

    tables: Mapping[str, str]
    features: Mapping[str, FeatureEntry]
    vocabularies: Mapping[str, Keys]
    signatures: Mapping[str, SignatureEntry]
    reasons: Mapping[str, str] = field(default_factory=dict)
    inexact: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    added: tuple[LookupDevice, ...] | None = None
    added_model: ModelSpec | None = None
    summations: Mapping[str, Summation] = field(default_factory=dict)
    batch_sizes: tuple[int, ...] = DEFAULT_BATCH_SIZES
    is_declared: bool = False


def vocabulary_path(feature: str) -> str:
    """Returns the path, within an adopted artifact, of a vocabulary file that adopt writes for a feature."""
    return f"assets.extra/vocabulary_{feature}.txt"


def plan_of_discovery(found: Discovery) -> AdoptPlan:
    """Plans the manifest for the lookups that discover() found in the graph."""
    features, vocabularies = {}, {}
    named: dict[Keys, str] = {}
    for name, feature in found.features.items():
        table, keys = found.tables[feature.table], feature.keys
        if keys is not None and keys not in named:
            named[keys] = name
            vocabularies[name] = _with_file(keys, vocabulary_path(name) if keys.lines else "")
        features[name] = FeatureEntry(table, None if keys is None else named[keys])
    return AdoptPlan(
        {name: key for key, name in found.tables.items()},
        features,
        vocabularies,
        {one.name: one.entry for one in found.signatures},
        reasons={one.name: one.reason for one in found.signatures if one.reason},
        inexact=frozenset(one.name for one in found.signatures if not one.is_exact),
        added_model=_model(found, features, vocabularies),
        summations={key: one.summation for s in found.signatures for key, one in s.entry.features.items()},
    )


def plan_of_spec(spec: AdoptSpec, inputs: Mapping[str, Mapping[str, InputInfo]], opened: OpenedGraph) -> AdoptPlan:
    """Plans the manifest that a user's spec file declares.

    Args:
      inputs: signature -> its inputs, for every signature of the SavedModel.
      opened: the SavedModel's graph. If the same numbers are saved under several keys, the plan uses the key that the
        graph restores.

    Raises:
      ExportError: the spec names a signature that the SavedModel lacks.
    """
    signatures: dict[str, SignatureEntry] = {}
    for name, fitting in spec.fitting.items():
        if name not in inputs:
            raise ExportError(f"[signatures.{name}]: the SavedModel has signatures {sorted(inputs)}")
        features = [f for f in spec.model.features if f.name in {*fitting.outputs, *fitting.inputs}]
        signatures[name] = _entry(spec, features or list(spec.model.features), fitting, inputs[name])
    for name, infos in inputs.items():
        features = _named_after_features(spec, infos)
        if name not in signatures:
            plain = SignatureEntry("predict", {})
            signatures[name] = _entry(spec, features, FittingSignature(), infos) if features else plain
    planned, vocabularies = {}, {}
    for feature in spec.model.features:
        words = feature.vocabulary
        planned[feature.name] = FeatureEntry(feature.table, feature.name if words else None)
        if words is None:
            continue
        entry = vocabulary_entry(words, vocabulary_path(feature.name))
        vocabularies[feature.name] = Keys(entry, tuple(str(key).encode() for key in words.keys))
    return AdoptPlan(
        {table: opened.alias(key) for table, key in spec.variables.items()},
        planned,
        vocabularies,
        signatures,
        required=frozenset(spec.fitting),
        added=spec.added,
        added_model=spec.model,
        batch_sizes=spec.batch_sizes,
        is_declared=True,
    )


def _model(
    found: Discovery, features: Mapping[str, FeatureEntry], vocabularies: Mapping[str, Keys]
) -> ModelSpec | None:
    """Returns the ModelSpec of lookups to add: those that an added signature can have. None if none is left."""
    specs = []
    for name, lookup in found.lookups().items():
        planned = features[name]
        variable = found.opened.variables[found.features[name].table]
        takes_integers = planned.vocabulary and vocabularies[planned.vocabulary].entry.key_dtype == "int64"
        # An added signature's graph has neither max_norm nor a vector for empty rows.
        is_plain = lookup.max_norm is None and lookup.on_empty_row == "zeros"
        if variable.dtype != "float32" or takes_integers or "__" in name or not is_plain:
            continue
        if lookup.ids in found.quantized:
            # What is read beside the integers are their scales, and no vectors.
            continue
        specs.append(
            FeatureSpec(
                name,
                planned.table,
                is_ragged=lookup.row_splits is not None,
                combiner=lookup.combiner,
                on_bad_id=lookup.on_bad_id,
                default_id=lookup.default_row if lookup.on_bad_id == "default_row" else 0,
                on_nonpositive_weight=lookup.on_nonpositive_weight,
            )
        )
    shapes = {name: found.opened.variables[key].shape for key, name in found.tables.items()}
    used = {feature.table for feature in specs}
    tables = tuple(TableSpec(name, size, dim) for name, (size, dim) in shapes.items() if name in used)
    return ModelSpec(tables, tuple(specs)) if specs else None


def left_to_tensorflow(plan: AdoptPlan, why: Mapping[str, str]) -> AdoptPlan:
    """Returns a plan in which TensorFlow runs the signatures whose lookups the graph does not say, or disproves.

    Args:
      why: signature -> the reason.
    """
    if not why:
        return plan
    run: GraphRun = "cut" if plan.is_declared else "whole"
    signatures = {
        name: SignatureEntry("predict", {}, run=run) if name in why else e for name, e in plan.signatures.items()
    }
    model = plan.added_model
    if model is not None and not plan.is_declared:
        # What the graph disproves in one signature is not believed in another. A spec's features are the user's word.
        disproved = {feature for name in why for feature in plan.signatures[name].features}
        left = tuple(feature for feature in model.features if feature.name not in disproved)
        used = {feature.table for feature in left}
        tables = tuple(table for table in model.tables if table.name in used)
        model = ModelSpec(tables, left) if left else None
    return dataclasses.replace(plan, signatures=signatures, reasons={**plan.reasons, **why}, added_model=model)


@dataclass(frozen=True, slots=True)
class Unproven:
    """A lookup that a spec declares, and that the graph's ops do not say. reason: what they say instead."""

    signature: str
    feature: str
    reason: str

    def __str__(self) -> str:
        return f"signature {self.signature!r}, feature {self.feature!r}: {self.reason}"


def unproven_features(plan: AdoptPlan, found: Discovery) -> list[Unproven]:
    """Returns the lookups of a spec's plan that the graph's ops do not say.

    Raises:
      ExportError: a lookup has an input that its signature lacks.
    """
    unproven = []
    read = {one.name: one for one in found.signatures}
    for name, entry in plan.signatures.items():
        if entry.kind != "lookup":
            continue
        known = {
            (found.features[key].table, lookup.ids): (lookup, found.features[key].keys)
            for key, lookup in read[name].entry.features.items()
        }
        inputs = sorted(found.opened.specs[name].inputs)
        for feature, declared in entry.features.items():
            if declared.ids not in inputs:
                raise ExportError(f"signature {name!r}: it takes {inputs}, the spec says {declared.ids!r}")
            at = plan.tables[plan.features[feature].table], declared.ids
            planned = plan.vocabularies.get(plan.features[feature].vocabulary or "")
            if at not in known:
                why = read[name].reason or f"no lookup of {at[0]!r} by input {declared.ids!r} was found"
                reasons = [f"the graph's ops do not say that it is a lookup: {why}"]
            elif read[name].entry.kind != "lookup":
                reasons = [f"the graph's ops do not say that it is a lookup: {read[name].reason}"]
            else:
                reasons = _differences(declared, planned, *known[at])
            if reasons:
                unproven.append(Unproven(name, feature, "; ".join(reasons)))
    return unproven


def _differences(declared: LookupFeature, planned: Keys | None, read: LookupFeature, keys: Keys | None) -> list[str]:
    """Says in which fields a spec's lookup differs from the one that the graph's ops say."""
    same = {"output", "summation", "mean_divisor"}
    if "default_row" not in (declared.on_bad_id, declared.on_empty_row, read.on_bad_id, read.on_empty_row):
        same.add("default_row")
    differs = [
        f"{field.name} is {getattr(declared, field.name)!r} in the spec, {getattr(read, field.name)!r} in the graph"
        for field in dataclasses.fields(declared)
        if field.name not in same and getattr(declared, field.name) != getattr(read, field.name)
    ]
    if planned is not None and (keys is None or _with_file(keys, planned.entry.file) != planned):
        differs.append("the vocabulary differs from the graph's")
    if planned is None and keys is not None:
        differs.append("the graph takes keys of a vocabulary")
    return differs


def _with_file(keys: Keys, file: str) -> Keys:
    return Keys(dataclasses.replace(keys.entry, file=file), keys.lines)


def _named_after_features(spec: AdoptSpec, infos: Mapping[str, InputInfo]) -> list[FeatureSpec]:
    features, explained = [], set()
    for feature in spec.model.features:
        needed = {feature.ids_input, feature.row_splits_input} - {None}
        if needed <= set(infos):
            features.append(feature)
            explained |= {*needed, feature.weights_input}
    return features if explained >= set(infos) else []


def _entry(
    spec: AdoptSpec, features: list[FeatureSpec], fitting: FittingSignature, infos: Mapping[str, InputInfo]
) -> SignatureEntry:
    entries: dict[str, LookupFeature] = {}
    names_of = [feature.name for feature in features]
    base = lookup_entry(spec.model, fitting.device, batch_sizes=spec.batch_sizes, features=names_of)
    for name, lookup in base.features.items():
        names = fitting.inputs.get(name, {})
        weights = names.get("weights", lookup.weights)
        entries[name] = dataclasses.replace(
            lookup,
            ids=names.get("ids", lookup.ids),
            row_splits=names.get("row_splits", lookup.row_splits),
            weights=weights if weights in infos else None,
            output=fitting.outputs.get(name, lookup.output),
        )
    return SignatureEntry("lookup", entries, fitting.device)
