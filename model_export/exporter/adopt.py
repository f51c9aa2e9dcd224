"""A foreign SavedModel - TensorFlow 1 or 2, Keras, TFRS - gets a manifest, so that its lookups run on mapped tables.

The model is copied, its variables stay as they are. A signature that is a lookup already is described where it stands;
where none fits, lookup signatures are added. Every one is held against the numpy oracle before the copy becomes a
version.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.adopt_graph import add_lookups, saved_rows
from model_export.exporter.adopt_spec import AdoptSpec, FittingSignature, candidate_lines, read_spec
from model_export.exporter.artifact import base_provenance
from model_export.exporter.finishing import finish
from model_export.exporter.integrity import VARIABLES_PREFIX
from model_export.exporter.lookup_features import SIGNATURE_OF_DEVICE, lookup_entry
from model_export.exporter.manifest_builder import build_manifest, vocabulary_file
from model_export.exporter.parity_report import Disagreements
from model_export.exporter.signature_runner import InputInfo, read_signature_inputs
from model_export.exporter.verify import check_parity
from model_export.exporter.versions import new_version_folder
from model_export.spec.features import FeatureSpec
from model_export.tensorflow_setup import tf
from service.core.manifest import MANIFEST_PATH, LookupDevice, LookupFeature, Manifest, SignatureEntry
from service.core.types import Array
from service.lookup.bundle import BundleEntry, read_bundle


def adopt(
    saved_model: str | Path,
    spec: str | Path,
    out: str | Path | None = None,
    *,
    version: int | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Path:
    """Copies a SavedModel to out/<version>/, with a manifest, and returns that folder; the original is not changed.

    Args:
      saved_model: the folder that holds saved_model.pb.
      spec: TOML file, see adopt_example.SPEC_EXAMPLE.
      out: folder of the versions; None: the one that saved_model is a version of.
      version: a new number; None takes the one after the highest that out holds, or 1.
      clock: gives the time that the manifest records.

    Raises:
      ExportError: a variable that is no table (all are listed), a signature that is not the lookup that the spec says,
        or a folder that is no SavedModel or has a manifest already. Nothing is left in out then.
    """
    folder, spec_file = Path(saved_model), Path(spec)
    base = _base(folder, out)
    target = new_version_folder(base, version)
    inputs = read_signature_inputs(folder)
    if (folder / MANIFEST_PATH).exists():
        raise ExportError(f"{folder} has a lookup manifest already")
    variables = read_bundle(folder / VARIABLES_PREFIX)
    wanted = read_spec(spec_file, variables)
    base.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=base))
    try:
        artifact = temporary / target.name
        shutil.copytree(folder, artifact)
        copied = read_bundle(artifact / VARIABLES_PREFIX)
        _write_vocabularies(artifact, wanted)
        index = _write_whole_tables(artifact, wanted, copied)
        provenance = {**base_provenance(int(target.name), clock()), "adopted_from": folder.name}

        def described(signatures: Mapping[str, SignatureEntry]) -> Manifest:
            return build_manifest(
                artifact, wanted.model, signatures, wanted.variables, provenance=provenance, table_index=index
            )

        signatures = _fitting(wanted, inputs, artifact, described)
        added = ("cpu",) if wanted.added is None and not signatures else wanted.added or ()
        lookups = _added(wanted, added)
        if lookups:
            parts = {table: _parts(copied[key]) for table, key in wanted.variables.items()}
            add_lookups(artifact, wanted.model, lookups, parts)
        manifest = described({**signatures, **lookups})
        parity = check_parity(artifact, manifest)
        finish(artifact, dataclasses.replace(manifest, parity=parity.manifest_json()), target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def candidates(saved_model: str | Path) -> list[str]:
    """Returns a line per variable of a SavedModel: name, shape, dtype, and whether it could be a table."""
    folder = Path(saved_model)
    read_signature_inputs(folder)
    return candidate_lines(read_bundle(folder / VARIABLES_PREFIX))


def _base(folder: Path, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    if not folder.resolve().name.isdecimal():
        raise ExportError(f"{folder} is not a version of a model; say where the copy goes (out, --out)")
    return folder.resolve().parent


def _fitting(
    wanted: AdoptSpec,
    inputs: Mapping[str, Mapping[str, InputInfo]],
    artifact: Path,
    described: Callable[[Mapping[str, SignatureEntry]], Manifest],
) -> dict[str, SignatureEntry]:
    found = {}
    for name, fitting in wanted.fitting.items():
        if name not in inputs:
            raise ExportError(f"[signatures.{name}]: the SavedModel has signatures {sorted(inputs)}")
        features = [f for f in wanted.model.features if f.name in {*fitting.outputs, *fitting.inputs}]
        found[name] = _entry(wanted, features or list(wanted.model.features), fitting, inputs[name])
    for name, infos in inputs.items():
        features = _named_after_features(wanted, infos)
        if name in found or not features:
            continue
        entry = _entry(wanted, features, FittingSignature(), infos)
        try:
            check_parity(artifact, described({name: entry}))
        except (Disagreements, ExportError):
            # Its inputs are those of features but its answers are not their vectors: it runs as a graph, as before.
            continue
        found[name] = entry
    return found


def _named_after_features(wanted: AdoptSpec, infos: Mapping[str, InputInfo]) -> list[FeatureSpec]:
    features, explained = [], set()
    for feature in wanted.model.features:
        needed = {feature.ids_input, feature.row_splits_input} - {None}
        if needed <= set(infos):
            features.append(feature)
            explained |= {*needed, feature.weights_input}
    return features if explained >= set(infos) else []


def _entry(
    wanted: AdoptSpec, features: list[FeatureSpec], fitting: FittingSignature, infos: Mapping[str, InputInfo]
) -> SignatureEntry:
    entries: dict[str, LookupFeature] = {}
    names_of = [feature.name for feature in features]
    base = lookup_entry(wanted.model, fitting.device, batch_sizes=wanted.batch_sizes, features=names_of)
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


def _added(wanted: AdoptSpec, devices: tuple[LookupDevice, ...]) -> dict[str, SignatureEntry]:
    return {
        SIGNATURE_OF_DEVICE[device]: lookup_entry(wanted.model, device, batch_sizes=wanted.batch_sizes)
        for device in devices
    }


def _write_vocabularies(artifact: Path, wanted: AdoptSpec) -> None:
    for feature in wanted.model.features:
        if feature.vocabulary is None:
            continue
        path = artifact / vocabulary_file(feature.name)
        if path.exists():
            raise ExportError(f"the SavedModel has an asset {path.name} of its own; name feature {feature.name!r} anew")
        path.parent.mkdir(exist_ok=True)
        text = "".join(f"{key}\n" for key in feature.vocabulary.keys)
        path.write_text(text, encoding="utf-8", newline="\n")


def _parts(entry: BundleEntry) -> list[BundleEntry]:
    return [part.entry for part in entry.slices] if entry.is_sliced else [entry]


def _write_whole_tables(artifact: Path, wanted: AdoptSpec, variables: Mapping[str, BundleEntry]) -> dict[str, str]:
    # A partitioned variable lies in parts that need not follow each other; a table has to be one piece to be mapped.
    index = {}
    for table, key in wanted.variables.items():
        entry = variables[key]
        if entry.is_sliced:
            if any(part.start[1] or part.entry.shape[1] != entry.shape[1] for part in entry.slices):
                raise ExportError(f"table {table!r} is saved in parts by columns; only parts by rows can be adopted")
            index[table] = f"assets.extra/table_{table}"
            (artifact / "assets.extra").mkdir(exist_ok=True)
            tf.raw_ops.SaveV2(
                prefix=str(artifact / index[table]),
                tensor_names=[key],
                shape_and_slices=[""],
                tensors=[tf.constant(_joined(entry))],
            )
    return index


def _joined(entry: BundleEntry) -> Array:
    whole = np.empty(entry.shape, entry.dtype)
    for part in entry.slices:
        rows = part.entry.shape[0]
        whole[part.start[0] : part.start[0] + rows] = saved_rows(part.entry, 0, rows)
    return whole
