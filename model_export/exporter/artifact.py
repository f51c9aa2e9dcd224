"""Writes an artifact into a temporary folder, verifies it there, and renames the folder to the version's name.

So a server that watches the model's folder never sees a half-written or wrong version.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.recording import record_requests
from model_export.exporter.versions import (
    COMPARED_ROWS,
    COMPARED_ROWS_KEY,
    WHOLE_CHECK_BYTES,
    LabelSource,
    finish,
    new_version_folder,
    temporary_folder,
)
from model_export.graphs.reduced_table import REDUCED_KEY, ReducedTable, chosen_dtypes
from model_export.graphs.reduced_table import reduced as reduced_table
from model_export.graphs.source import (
    SIGNATURE_OF_DEVICE,
    VARIABLES_PREFIX,
    ExportSource,
    LookupPlan,
    SavedParts,
    lookup_entry,
    predict_entry,
    tensor_features,
    vocabulary_entry,
)
from model_export.parity.integrity import file_sizes, table_chunks, table_entry, with_nonfinite
from model_export.parity.saved_table import read_scales
from model_export.parity.verify import check_parity
from model_export.spec.features import ModelSpec, TableSpec
from model_export.tensorflow_setup import tf
from service.artifact.bundle import read_bundle
from service.artifact.manifest import MANIFEST_PATH, FeatureEntry, LookupDevice, Manifest, SignatureEntry, TableEntry
from service.types import SCALED_DTYPES, packed_dim, saved_dtype, stored_columns


def build_manifest(
    artifact: Path,
    spec: ModelSpec,
    signatures: Mapping[str, SignatureEntry],
    table_variables: Mapping[str, str],
    *,
    provenance: Mapping[str, Any],
    table_scales: Mapping[str, str] | None = None,
    table_dtypes: Mapping[str, str] | None = None,
) -> Manifest:
    """Builds the manifest of a SavedModel that was just written.

    Args:
      table_variables: table -> its key in a checkpoint index.
      table_scales: table -> key of its scales in the same index.
      table_dtypes: table -> dtype that it must be saved as, if not float32.

    Raises:
      ExportError: the artifact's files do not fit the spec.
    """
    return Manifest(
        tables={
            table.name: _table(
                artifact,
                spec.table(table.name),
                (table_variables[table.name], (table_scales or {}).get(table.name)),
                (table_dtypes or {}).get(table.name, "float32"),
            )
            for table in spec.tables
        },
        features={f.name: FeatureEntry(f.table, f.name if f.vocabulary else None) for f in spec.features},
        signatures=signatures,
        vocabularies={
            f.name: vocabulary_entry(f.vocabulary, vocabulary_file(f.name))
            for f in spec.features
            if f.vocabulary is not None
        },
        files=file_sizes(artifact),
        provenance=provenance,
    )


def vocabulary_file(feature: str) -> str:
    return f"assets/{feature}.txt"


def _table(artifact: Path, table: TableSpec, keys: tuple[str, str | None], dtype: str) -> TableEntry:
    key, scale_key = keys
    found = read_bundle(artifact / VARIABLES_PREFIX)
    entry = found.get(key)
    shape = (table.vocabulary_size, stored_columns(dtype, table.embedding_dim))
    if entry is None or entry.is_sliced or entry.shape != shape:
        what = "nothing" if entry is None else f"{'parts of ' if entry.is_sliced else ''}{list(entry.shape)}"
        raise ExportError(
            f"table {table.name!r}: {VARIABLES_PREFIX}.index has {what} under {key!r}, expected {list(shape)}"
        )
    if entry.dtype != saved_dtype(dtype):
        raise ExportError(f"table {table.name!r} was saved as {entry.dtype}, expected {dtype}")
    scale = None if scale_key is None else found.get(scale_key)
    if (dtype in SCALED_DTYPES) != (scale is not None and scale.dtype == "float32"):
        raise ExportError(f"table {table.name!r}: {VARIABLES_PREFIX}.index has no float32 scales under {scale_key!r}")
    named = None if scale is None else (str(scale_key), scale)
    return table_entry(artifact, key, entry, named, packed_dim=packed_dim(dtype, table.embedding_dim))


_PACKAGE = "embedding-server"


def write_artifact(
    source: ExportSource,
    base: Path,
    *,
    created: datetime,
    version: int | None = None,
    lookup_devices: Sequence[LookupDevice] = ("cpu",),
    signatures: Sequence[str] | None = None,
    batch_sizes: Sequence[int],
    export_to_tpu: bool = False,
    allow_nonfinite: bool = False,
    warmup: bool = True,
    extra_files: Mapping[str, Path] | None = None,
    table_dtype: str | Mapping[str, str] | None = None,
    labels: Mapping[str, LabelSource] = MappingProxyType({}),
) -> Path:
    """Exports a trained model as base/<version>/ and returns that folder.

    The arguments are those of export_model.export(), but for these.

    Args:
      created: the time that provenance records.
      lookup_devices: devices to write a lookup signature for.
      labels: those of the source, if it has any, are labels of the other tables.

    Raises:
      ExportError: a signature is unknown, the version exists, a table holds NaN, the saved bytes differ from the
        trained table, or an output differs from its reference. `base` then gets no version.
    """
    target = new_version_folder(base, version)
    dtypes = chosen_dtypes(table_dtype, [table.name for table in source.spec.tables])
    lookups, predict = _chosen(source, lookup_devices, signatures, batch_sizes)
    provenance = base_provenance(int(target.name), created)

    def written(source: ExportSource, artifact: Path) -> Manifest:
        files = vocabulary_files(source.spec, artifact.parent / "vocabularies")
        reduced = {
            name: reduced_table(name, dtype, source.spec.table(name).vocabulary_size, partial(source.table_rows, name))
            for name, dtype in dtypes.items()
        }
        parts = source.save(artifact, LookupPlan(lookups, files, export_to_tpu, reduced), predict)
        _add_missing_vocabularies(artifact, files)
        add_extra_files(artifact, extra_files or {})
        losses = {REDUCED_KEY: {name: table.rounding.to_json() for name, table in reduced.items()}} if reduced else {}
        manifest = build_manifest(
            artifact,
            source.spec,
            {**lookups, **_predict_entries(source.spec, parts, predict)},
            parts.table_variables,
            provenance={**provenance, **source.provenance, **losses},
            table_scales=parts.table_scales,
            table_dtypes=dtypes,
        )
        _check_tables(artifact, manifest, source, reduced)
        manifest = with_nonfinite(artifact, manifest, allow=allow_nonfinite)
        manifest = record_requests(artifact, manifest, source, parts, warmup=warmup)
        return dataclasses.replace(manifest, files=file_sizes(artifact))

    with temporary_folder(base) as temporary:
        artifact = temporary / target.name
        manifest = written(source, artifact)
        first_rows = getattr(source, "first_rows", None)
        if first_rows is not None and sum(t.nbytes for t in manifest.tables.values()) > WHOLE_CHECK_BYTES:
            # check_parity() runs graphs in TensorFlow, which would hold these large tables whole in memory. So export a
            # copy of the model with only each table's first rows, and check that copy.
            manifest = dataclasses.replace(
                manifest, provenance={**manifest.provenance, COMPARED_ROWS_KEY: COMPARED_ROWS}
            )
            twin = temporary / "twin" / target.name
            twin.parent.mkdir()
            parity = check_parity(twin, written(first_rows(COMPARED_ROWS), twin))
        else:
            parity = check_parity(artifact, manifest)
        labels = {**getattr(source, "labels", {}), **labels}
        finish(artifact, dataclasses.replace(manifest, parity=parity.manifest_json()), target, labels)
    return target


def _chosen(
    source: ExportSource,
    devices: Sequence[LookupDevice],
    signatures: Sequence[str] | None,
    batch_sizes: Sequence[int],
) -> tuple[dict[str, SignatureEntry], list[str]]:
    # A model whose spec has no features has predict signatures, but no lookups.
    lookups = {SIGNATURE_OF_DEVICE[device]: device for device in devices if source.spec.features}
    available = [*lookups, *source.predict_names]
    # A source may say why it has no predictions. Only a caller who names the signatures gets an export without them.
    reason = getattr(source, "no_predictions", "")
    if reason and (signatures is None or set(signatures) - set(available)):
        raise ExportError(f"no prediction can be exported: {reason}; signatures={list(lookups)} exports lookups alone")
    chosen = available if signatures is None else list(signatures)
    if unknown := [name for name in chosen if name not in available]:
        raise ExportError(
            f"signatures: {unknown} are not among those that this model has on {list(devices)}: {available}"
        )
    if not chosen or len(set(chosen)) != len(chosen):
        raise ExportError(f"signatures: {chosen} must name at least one signature, and none twice")
    entries = {
        name: lookup_entry(source.spec, device, batch_sizes=batch_sizes)
        for name, device in lookups.items()
        if name in chosen
    }
    return entries, [name for name in chosen if name not in lookups]


def vocabulary_files(spec: ModelSpec, folder: Path) -> dict[str, Path]:
    folder.mkdir()
    files = {}
    for feature in spec.features:
        if feature.vocabulary is not None:
            files[feature.name] = folder / f"{feature.name}.txt"
            with files[feature.name].open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{key}\n" for key in feature.vocabulary.keys)
    return files


def _add_missing_vocabularies(artifact: Path, files: Mapping[str, Path]) -> None:
    # TensorFlow copies only the vocabularies that a graph reads into the artifact. The server needs the others too, for
    # clients that send strings.
    for feature, file in files.items():
        asset = artifact / vocabulary_file(feature)
        if not asset.exists():
            asset.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, asset)
        elif asset.read_bytes() != file.read_bytes():
            raise ExportError(f"{asset.name}: another asset of the model has the name of feature {feature!r}")


def add_extra_files(artifact: Path, files: Mapping[str, Path]) -> None:
    """Copies files to paths below an artifact's assets.extra; raises ExportError if a path lies outside or exists."""
    for name, file in files.items():
        target = artifact / "assets.extra" / name
        is_below = not Path(name).is_absolute() and ".." not in Path(name).parts
        if not is_below or target.exists() or target == artifact / MANIFEST_PATH:
            raise ExportError(f"extra_files: {name!r} is no path of its own below assets.extra")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _predict_entries(spec: ModelSpec, parts: SavedParts, predict: Sequence[str]) -> dict[str, SignatureEntry]:
    if set(parts.predict) != set(predict):
        raise ExportError(f"the model wrote the signatures {sorted(parts.predict)}, it was asked for {sorted(predict)}")
    return {name: predict_entry(spec, tensor_features(parts.predict[name])) for name in predict}


def _check_tables(
    artifact: Path, manifest: Manifest, source: ExportSource, reduced: Mapping[str, ReducedTable]
) -> None:
    # Compare the saved tables with the trained ones chunk by chunk, because a table may fill most of the memory.
    for name, entry in manifest.tables.items():
        few_bits = reduced.get(name)
        scales = read_scales(artifact, entry)
        if scales is not None and (few_bits is None or scales.tobytes() != np.asarray(few_bits.scales).tobytes()):
            raise ExportError(f"table {name!r}: the saved scales are not those of its rows")
        for start, saved in table_chunks(artifact, entry):
            end = start + len(saved)
            trained = np.ascontiguousarray(
                source.table_rows(name, start, end) if few_bits is None else few_bits.numbers[start:end]
            )
            if trained.dtype != saved.dtype or trained.tobytes() != saved.tobytes():
                raise ExportError(f"table {name!r}: the saved bytes are not the trained variable")


def base_provenance(version: int, created: datetime) -> dict[str, Any]:
    return {
        "created": created.isoformat(timespec="seconds"),
        "version": version,
        "package": f"{_PACKAGE} {metadata.version(_PACKAGE)}",
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
    }
