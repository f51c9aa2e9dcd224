"""Checks that an artifact's manifest agrees with its checkpoint index, files and vocabularies. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.graphs.reduced_table import REDUCED_KEY, widened
from model_export.parity.saved_table import read_scales
from service.artifact.bundle import BundleEntry, prefix_of, read_bundle
from service.artifact.delta_file import DELTAS_FOLDER
from service.artifact.dict_vocabulary import vocabulary_lines
from service.artifact.manifest import MANIFEST_PATH, Manifest, TableEntry, TableScale
from service.artifact.row_labels import open_labels
from service.errors import ArtifactError
from service.types import TABLE_DTYPES, Array, saved_dtype, stored_columns

# Key in the manifest's provenance. Its value maps a table to its count of NaN and infinite numbers, if the export
# allowed them.
NONFINITE_KEY = "nonfinite_values"
_CHUNK_BYTES = 16 << 20


def integrity_faults(artifact: Path, manifest: Manifest) -> list[str]:
    """Returns a sentence for each disagreement of artifact and manifest; raises ArtifactError for a bad index."""
    faults = [
        *_file_faults(artifact, manifest),
        *_table_faults(artifact, manifest),
        *_vocabulary_faults(artifact, manifest),
        *_label_faults(artifact, manifest),
    ]
    if not faults:
        faults += _number_faults(artifact, manifest)
    return faults


def check_integrity(artifact: Path, manifest: Manifest) -> None:
    faults = integrity_faults(artifact, manifest)
    if faults:
        raise ExportError(f"{artifact}: " + "; ".join(faults))


def file_sizes(artifact: Path) -> dict[str, int]:
    """Returns every file's size by the file's path; leaves out manifest and deltas, which are written later."""
    paths = sorted(path for path in artifact.rglob("*") if path.is_file())
    names = {path.relative_to(artifact): path for path in paths}
    sizes = {name.as_posix(): path.stat().st_size for name, path in names.items() if name.parts[0] != DELTAS_FOLDER}
    sizes.pop(MANIFEST_PATH, None)
    return sizes


def table_chunks(artifact: Path, entry: TableEntry) -> Iterator[tuple[int, Array]]:
    """Yields (first row, rows) of a saved table, a few megabytes at a time, so that it is never in memory as a whole.

    Rows have the numpy dtype of TABLE_DTYPES; those of an int4 table are [n, ceil(D / 2)] bytes.
    """
    row_bytes = entry.nbytes // entry.vocabulary_size
    step = max(1, _CHUNK_BYTES // row_bytes)
    dtype = TABLE_DTYPES[entry.dtype]
    with (artifact / entry.file).open("rb") as file:
        for start in range(0, entry.vocabulary_size, step):
            rows = min(step, entry.vocabulary_size - start)
            file.seek(entry.offset + start * row_bytes)
            yield start, np.frombuffer(file.read(rows * row_bytes), dtype).reshape(rows, -1)


def saved_rows(entry: BundleEntry, start: int, stop: int) -> Array:
    row_bytes = entry.nbytes // entry.shape[0]
    with entry.file.open("rb") as file:
        file.seek(entry.offset + start * row_bytes)
        return np.frombuffer(file.read((stop - start) * row_bytes), entry.dtype).reshape(stop - start, entry.shape[1])


def table_entry(
    artifact: Path,
    variable: str,
    entry: BundleEntry,
    scale: tuple[str, BundleEntry] | None = None,
    *,
    packed_dim: int | None = None,
) -> TableEntry:
    """Returns the manifest entry of a table that is a whole matrix in a checkpoint.

    Args:
      scale: checkpoint key and index entry of the matrix's scales.
      packed_dim: D of an int4 table, for which the index has only the number of bytes per row.
    """
    scaled = None
    if scale is not None:
        name, numbers = scale
        file = numbers.file.relative_to(artifact).as_posix()
        scaled = TableScale(name, file, numbers.offset, numbers.nbytes, numbers.crc32c)
    return TableEntry(
        variable=variable,
        vocabulary_size=entry.shape[0],
        embedding_dim=entry.shape[1] if packed_dim is None else packed_dim,
        dtype=entry.dtype if packed_dim is None else "int4",
        file=entry.file.relative_to(artifact).as_posix(),
        offset=entry.offset,
        nbytes=entry.nbytes,
        crc32c=entry.crc32c,
        scale=scaled,
    )


def _file_faults(artifact: Path, manifest: Manifest) -> list[str]:
    found, declared = file_sizes(artifact), dict(manifest.files)
    return [
        f"{name} has {found.get(name, 'no')} bytes, the manifest says {declared.get(name, 'nothing of it')}"
        for name in sorted(set(found) | set(declared))
        if found.get(name) != declared.get(name)
    ]


def _table_faults(artifact: Path, manifest: Manifest) -> list[str]:
    faults = []
    index_of = cache(read_bundle)
    for name, table in manifest.tables.items():
        index = index_of(prefix_of(artifact / table.file))
        entry = index.get(table.variable)
        scale = None if table.scale is None else index.get(table.scale.variable)
        if table.scale is not None and (
            scale is None or scale.dtype != "float32" or scale.nbytes != 4 * table.vocabulary_size
        ):
            faults.append(f"table {name!r}: the index has no float32 scale per row under {table.scale.variable!r}")
        elif entry is None:
            faults.append(f"table {name!r}: the index has no {table.variable!r}")
        elif entry.is_sliced or len(entry.shape) != 2:
            faults.append(f"table {name!r}: saved as {entry.shape} in parts; a whole matrix is needed")
        elif (indexed := _indexed(artifact, table, entry, scale)) != table:
            faults.append(f"table {name!r}: the index says {indexed}, the manifest {table}")
        else:
            faults += [
                f"table {name!r} ends beyond {part.file}"
                for part in (table, table.scale)
                if part is not None and part.offset + part.nbytes > manifest.files.get(part.file, 0)
            ]
    return faults


def _indexed(artifact: Path, table: TableEntry, entry: BundleEntry, scale: BundleEntry | None) -> TableEntry:
    wanted = (saved_dtype("int4"), stored_columns("int4", table.embedding_dim))
    is_packed = table.dtype == "int4" and (entry.dtype, entry.shape[1]) == wanted
    packed_dim = table.embedding_dim if is_packed else None
    named = None if table.scale is None or scale is None else (table.scale.variable, scale)
    return table_entry(artifact, table.variable, entry, named, packed_dim=packed_dim)


def _vocabulary_faults(artifact: Path, manifest: Manifest) -> list[str]:
    faults = []
    for name, entry in manifest.vocabularies.items():
        if not entry.file:
            continue
        try:
            words = vocabulary_lines(artifact / entry.file)
        except OSError as error:
            faults.append(f"vocabulary {name!r}: {error}")
            continue
        if len(words) != entry.size or len(set(words)) != len(words):
            faults.append(f"vocabulary {name!r}: {len(words)} lines, {len(set(words))} distinct, not {entry.size}")
    return faults


def _label_faults(artifact: Path, manifest: Manifest) -> list[str]:
    try:
        labels = open_labels(artifact, manifest)
    except ArtifactError as error:
        return [str(error)]
    return [
        f"labels of table {table!r}: {manifest.labels[table].starts} does not have the place of each line"
        for table, found in labels.items()
        if not np.array_equal(np.flatnonzero(found.text == ord("\n")) + 1, found.starts[1:])
    ]


def with_nonfinite(artifact: Path, manifest: Manifest, *, allow: bool) -> Manifest:
    """Returns the manifest, plus the count of NaN and infinite numbers of each table that has any.

    Raises:
      ExportError: a table holds NaN or infinity, and `allow` is False.
    """
    found = {}
    for name, entry in manifest.tables.items():
        chunks = (rows for _, rows in table_chunks(artifact, entry))
        bad = sum(int(np.count_nonzero(~np.isfinite(widened(rows, entry.dtype)))) for rows in chunks)
        if bad and not allow:
            raise ExportError(
                f"table {name!r} holds {bad} numbers that are NaN or infinity; training went wrong, nothing was "
                "exported (allow_nonfinite exports it all the same)"
            )
        if bad:
            found[name] = bad
    return replace(manifest, provenance={**manifest.provenance, NONFINITE_KEY: found}) if found else manifest


def _number_faults(artifact: Path, manifest: Manifest) -> list[str]:
    allowed = manifest.provenance.get(NONFINITE_KEY, {})
    faults = [
        f"table {name!r} holds NaN or infinity"
        for name, entry in manifest.tables.items()
        if name not in allowed
        and not all(np.isfinite(widened(rows, entry.dtype)).all() for _, rows in table_chunks(artifact, entry))
    ]
    for name, entry in manifest.tables.items():
        scales = read_scales(artifact, entry)
        if scales is not None and not (np.isfinite(scales) & (scales >= 0)).all():
            faults.append(f"table {name!r} has a scale that is negative, NaN or infinity")
        losses = manifest.provenance.get(REDUCED_KEY, {}).get(name)
        if losses and not losses["largest_error"] <= losses["error_bound"]:
            faults.append(
                f"table {name!r} differs from the trained one by {losses['largest_error']:.3g}; the bound of "
                f"{entry.dtype} is {losses['error_bound']:.3g}"
            )
    return faults
