"""Makes a model that a server can serve from files of numbers, table by table and chunk by chunk.

Rows are copied from their file into the checkpoint of a stock SavedModel; TensorFlow builds the graph, but never holds
a table. The version appears by one rename, after its graph was compared with the numpy oracle.
"""

from __future__ import annotations

import json
import shlex
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np

from model_export.errors import ExportError, why
from model_export.exporter.bundle_writer import BundleWriter
from model_export.exporter.versions import (
    COMPARED_ROWS,
    COMPARED_ROWS_KEY,
    WHOLE_CHECK_BYTES,
    LabelSource,
    finish,
    new_version_folder,
    temporary_folder,
)
from model_export.graphs.reduced_table import REDUCED_KEY, chosen_dtypes
from model_export.graphs.source import LOOKUP, VARIABLES_PREFIX, lookup_entry
from model_export.importers.address import Address
from model_export.importers.formats import open_table
from model_export.importers.table_copy import (
    CopiedTable,
    OovPolicy,
    Progress,
    TableCopy,
    check_name,
    choose_features,
    model_spec,
)
from model_export.importers.table_reader import Keys, with_keys
from model_export.parity.comparison import ParityReport
from model_export.parity.integrity import NONFINITE_KEY, file_sizes
from model_export.spec.features import ModelSpec, cut_spec
from service.artifact.dict_vocabulary import lines_of
from service.artifact.manifest import LookupFeature, Manifest, TableEntry, TableScale
from service.types import TABLE_DTYPES, Array, saved_dtype


def import_tables(
    out: str | Path,
    tables: Mapping[str, str],
    *,
    features: Mapping[str, str] | None = None,
    keys: Mapping[str, str | Path] | None = None,
    oov: Mapping[str, str] | None = None,
    table_dtype: str | Mapping[str, str] | None = None,
    version: int | None = None,
    allow_nonfinite: bool = False,
    labels: Mapping[str, LabelSource] = MappingProxyType({}),
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    progress: Callable[[str], Progress] | None = None,
) -> Path:
    """Imports tables into out/<version>/, a stock SavedModel with a lookup manifest, and returns that folder.

    Args:
      tables: name -> PATH[:NAME][?OPTION=VALUE&...] of its rows (docs/import.md).
      features: name -> TABLE (one id a row) or TABLE:COMBINER (any number of ids a row); a table that no feature reads
        gets a feature of its own name, one id a row.
      keys: table -> file of the rows' keys, in order of rows: text, one key a line, or .npy.
      oov: table -> vector of an unknown key or an id beyond the table: "error" (refuse the request; the default),
        "zero", "row:N", or "mean", which adds a row.
      table_dtype: "float16", "bfloat16", "int8", "int4" or "float32", one for all tables or by table.
      version: a new number; None: one above the highest in `out`, or 1.
      allow_nonfinite: import NaN and infinity; the manifest then says how many.
      labels: table -> labels of its rows, as in export().
      clock: returns the time that the manifest records.
      progress: called with a table's name before it is read; returns a function that is called with (rows done, rows).

    Raises:
      ExportError: a file, key, name or number is invalid. `out` then gets no version.
      ArtifactError: the index of a TensorFlow checkpoint can not be read.
    """
    base = Path(out)
    target = new_version_folder(base, version)
    if not tables:
        raise ExportError("no tables to import; name one with --table NAME=FILE")
    for name in tables:
        check_name("table", name)
    for option, named in (("keys", keys or {}), ("oov", oov or {})):
        if unknown := sorted(set(named) - set(tables)):
            raise ExportError(f"{option} names {unknown}; the tables are {', '.join(tables)}")
    policies = {table: OovPolicy.parse(table, text) for table, text in (oov or {}).items()}
    chosen = choose_features(features or {}, list(tables))
    dtypes = chosen_dtypes(table_dtype, list(tables))
    copies = [
        TableCopy(
            name,
            str(source),
            dtypes.get(name, "float32"),
            adds_mean=name in policies and policies[name].kind == "mean",
            allow_nonfinite=allow_nonfinite,
        )
        for name, source in tables.items()
    ]
    with temporary_folder(base) as temporary:
        copied = _copied(copies, keys or {}, temporary, progress or (lambda _: lambda done, total: None))
        _finish(temporary, target, model_spec(copied, chosen, policies), copied, labels, clock())
    return target


def _copied(
    copies: Sequence[TableCopy],
    keys: Mapping[str, str | Path],
    temporary: Path,
    progress: Callable[[str], Progress],
) -> list[CopiedTable]:
    """Writes a checkpoint with all imported tables into the folder `temporary`."""
    # Open all files before the first table is copied, so that a bad file is refused early.
    opened = [open_table(copy.source, temporary) for copy in copies]
    of_files = {name: read_keys(Path(path)) for name, path in keys.items()}
    readers = [
        with_keys(
            reader,
            of_files.get(copy.name),
            Address.parse(copy.source).options,
            f"table {copy.name!r}: {copy.source}",
        )
        for copy, reader in zip(copies, opened, strict=True)
    ]
    try:
        with BundleWriter(temporary / VARIABLES_PREFIX) as writer:
            pairs = zip(copies, readers, strict=True)
            return [copy.run(reader, writer, progress(copy.name)) for copy, reader in pairs]
    except OSError as error:
        raise ExportError(f"cannot write the tables: {error}") from error


def _finish(
    temporary: Path,
    target: Path,
    spec: ModelSpec,
    tables: list[CopiedTable],
    labels: Mapping[str, LabelSource],
    created: datetime,
) -> None:
    # The module is imported late, because the import starts TensorFlow: errors in files have been reported by then.
    from model_export.exporter.artifact import base_provenance
    from model_export.parity.verify import check_parity

    artifact = temporary / target.name
    nonfinite = {table.name: table.nonfinite for table in tables if table.nonfinite}
    reduced = {table.name: table.rounding for table in tables if table.rounding is not None}
    provenance = {
        **base_provenance(int(target.name), created),
        "imported_from": {table.name: Address.parse(table.source).path.name for table in tables},
        **({REDUCED_KEY: reduced} if reduced else {}),
        **({NONFINITE_KEY: nonfinite} if nonfinite else {}),
    }
    manifest = _saved(artifact, (temporary / VARIABLES_PREFIX).parent, spec, tables, provenance)
    if sum(table.nbytes for table in manifest.tables.values()) > WHOLE_CHECK_BYTES:
        manifest = replace(manifest, provenance={**manifest.provenance, COMPARED_ROWS_KEY: COMPARED_ROWS})
        parity = _twin_parity(artifact, manifest, spec, tables, temporary / "twin")
    else:
        parity = check_parity(artifact, manifest)
    finish(artifact, replace(manifest, parity=parity.manifest_json()), target, labels)


def _saved(
    artifact: Path, variables: Path, spec: ModelSpec, tables: Sequence[CopiedTable], provenance: Mapping[str, Any]
) -> Manifest:
    from model_export.exporter.artifact import build_manifest, vocabulary_files
    from model_export.exporter.recording import lookup_requests, write_warmup
    from model_export.graphs.signature_runner import read_signature_inputs
    from model_export.importers.serving_graph import write_saved_model

    lookups = {LOOKUP: lookup_entry(spec, "cpu")}
    files = vocabulary_files(spec, artifact.parent / f"vocabularies-{artifact.name}")
    write_saved_model(artifact, variables, spec, tables, lookups, files)
    manifest = build_manifest(
        artifact,
        spec,
        lookups,
        {table.name: table.key for table in tables},
        provenance=provenance,
        table_scales={table.name: table.scale_key for table in tables if table.scale_key is not None},
        table_dtypes={table.name: table.dtype for table in tables},
    )
    inputs = read_signature_inputs(artifact)
    requests = {name: lookup_requests(artifact, manifest, entry, inputs[name]) for name, entry in lookups.items()}
    write_warmup(artifact, {name: list(several) for name, several in requests.items()})
    return replace(manifest, files=file_sizes(artifact))


def _twin_parity(
    artifact: Path, manifest: Manifest, spec: ModelSpec, tables: Sequence[CopiedTable], twin: Path
) -> ParityReport:
    from model_export.parity.verify import check_parity

    cut = [replace(table, vocabulary_size=min(COMPARED_ROWS, table.vocabulary_size)) for table in tables]
    copy_first_rows(artifact, manifest, cut, twin / VARIABLES_PREFIX)
    small = twin / "1"
    described = _saved(small, (twin / VARIABLES_PREFIX).parent, cut_spec(spec, COMPARED_ROWS), cut, {})
    return check_parity(small, described)


def copy_first_rows(artifact: Path, manifest: Manifest, tables: Sequence[CopiedTable], prefix: Path) -> None:
    """Writes a checkpoint with the first rows of an artifact's tables; `tables` gives each table's number of rows.

    TensorFlow holds whole tables in memory, so the import compares the graph of this small copy with the numpy oracle.
    """
    with BundleWriter(prefix) as writer:
        for table in tables:
            entry, rows = manifest.tables[table.name], table.vocabulary_size
            part = entry.nbytes // entry.vocabulary_size * rows
            writer.add(table.key, saved_dtype(table.dtype), [_rows(artifact, entry, table.dtype, part, rows)])
            if entry.scale is not None and table.scale_key is not None:
                writer.add(table.scale_key, "float32", [_rows(artifact, entry.scale, "float32", 4 * rows, rows)])


def _rows(artifact: Path, part: TableEntry | TableScale, dtype: str, nbytes: int, rows: int) -> Array:
    with (artifact / part.file).open("rb") as file:
        file.seek(part.offset)
        return np.frombuffer(file.read(nbytes), TABLE_DTYPES[dtype]).reshape(rows, -1)


def read_keys(path: Path) -> Keys:
    try:
        if path.suffix == ".npy":
            return _numpy_keys(path)
        # The byte order mark that some editors write is no part of the first key.
        return [line.decode() for line in lines_of(path.read_bytes().removeprefix(BOM_UTF8))]
    except UnicodeDecodeError as error:
        raise ExportError(f"{path}: keys are UTF-8 text, one a line: {error}") from error
    except (OSError, ValueError) as error:
        raise ExportError(f"cannot read keys from {path}: {why(error)}") from error


def _numpy_keys(path: Path) -> Keys:
    keys = np.load(path, allow_pickle=False)
    if keys.ndim != 1 or keys.dtype.kind not in "iuUS":
        raise ExportError(f"{path} holds {keys.dtype} {list(keys.shape)}; keys are one row of whole numbers or strings")
    if keys.dtype.kind == "S":
        return [key.decode() for key in keys.tolist()]
    listed: Keys = keys.tolist()
    return listed


_SHOWN_IDS = 2
# A lookup may ask for some of the features.
_SHOWN_FEATURES = 4


def import_summary(artifact: Path, base_path: str) -> Iterator[str]:
    manifest = Manifest.read(artifact)
    assert manifest is not None  # the import has written it
    features = manifest.signatures[LOOKUP].features
    yield "tables:"
    for name, table in manifest.tables.items():
        yield f"  {name}: {table.vocabulary_size:,} rows x {table.embedding_dim} {table.dtype}"
    yield "features:"
    for name, feature in features.items():
        form = "one per row" if feature.row_splits is None else f"any number per row ({feature.combiner})"
        yield f"  {name}: table {manifest.features[name].table}, {_ids(manifest, name)}, {form}"
    shown = {
        name: _example(artifact, manifest, name, feature) for name, feature in islice(features.items(), _SHOWN_FEATURES)
    }
    yield f"serve: {serve_command(base_path)}"
    request = json.dumps({"features": shown}, ensure_ascii=False)
    # The server names a model after its folder.
    name = base_path.rstrip("/").rpartition("/")[2] if "://" in base_path else Path(base_path).absolute().name
    yield f"ask:   curl -d {shlex.quote(request)} localhost:8501/v1/models/{quote(name)}:lookup"


def serve_command(base_path: str) -> str:
    return f"embedding-server {shlex.quote(base_path)}" + (" --store_cache_dir=DIR" if "://" in base_path else "")


def _ids(manifest: Manifest, feature: str) -> str:
    vocabulary = manifest.features[feature].vocabulary
    if vocabulary is None:
        return "row numbers"
    entry = manifest.vocabularies[vocabulary]
    return f"{entry.size:,} {'string' if entry.key_dtype == 'string' else 'integer'} keys"


def _example(artifact: Path, manifest: Manifest, name: str, feature: LookupFeature) -> list[Any]:
    vocabulary = manifest.features[name].vocabulary
    ids: list[Any] = list(range(manifest.tables[manifest.features[name].table].vocabulary_size))[:_SHOWN_IDS]
    if vocabulary is not None:
        entry = manifest.vocabularies[vocabulary]
        with (artifact / entry.file).open("rb") as file:
            lines = [line.decode() for line in lines_of(b"".join(islice(file, _SHOWN_IDS)))]
        ids = lines if entry.key_dtype == "string" else [int(line) for line in lines]
    return ids if feature.row_splits is None else [ids, ids[:1]]
