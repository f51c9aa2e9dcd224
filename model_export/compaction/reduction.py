"""Reduces an artifact's tables to fewer bits, and measures what each table loses: errors, angles, changed neighbours.

Rows with NaN or infinity, and angles of rows of zeros, are left out. Relative errors leave out numbers that are 0.

>>> losses = Losses("int8")
>>> losses.add(np.float32([[3, 4], [0, 0]]), np.float32([[3, 3], [0, 0]]))
>>> [round(value, 4) for value in losses.to_json().values() if value != "int8"]
[1.0, 0.25, 0.25, 0.125, 0.9899]
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.bundle_writer import BundleWriter
from model_export.graphs.reduced_table import REDUCED_KEY, Rounding, TableDtype, chosen_dtypes, widened
from model_export.graphs.source import SIGNATURE_OF_DEVICE, VARIABLES_PREFIX
from model_export.parity.integrity import table_chunks, table_entry
from model_export.parity.saved_table import SavedTable
from model_export.statistics.table_health import Progress, sample_ids, unit_rows
from service.artifact.bundle import prefix_of, read_bundle
from service.artifact.manifest import ADOPTED_FROM, Manifest, SignatureEntry, TableEntry
from service.artifact.protos import message_class
from service.types import INIT_SIGNATURE, TABLE_DTYPES, Array, packed_dim, saved_dtype

# Key in the provenance of a version whose tables were stored in fewer bits. Its value names the source version, and
# says why predictions are not affected.
REDUCED_FROM_KEY = "reduced_from"

MOST_QUERIES = 2_000
MOST_CANDIDATES = 100_000
NEIGHBOURS = 10
_SEED = 0
_BLOCK_ROWS = 100
# Two cosines count as equal if their difference is at most this number, about the rounding error of a cosine.
_TIE = 1e-6


class Losses:
    """Errors of one table's rows. Pass its rows to add(), a block at a time. Concurrency: one caller at a time."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._largest = {"error": 0.0, "relative_error": 0.0}
        self._sums = dict.fromkeys(("error", "relative_error", "cosine"), 0.0)
        self._counts = dict.fromkeys(self._sums, 0)

    def add(self, trained: Array, stored: Array) -> None:
        is_finite = np.isfinite(trained).all(axis=1)
        exact, found = trained[is_finite].astype(np.float64), stored[is_finite].astype(np.float64)
        if not exact.size:
            return
        errors = np.abs(found - exact)
        is_some = exact != 0
        relative = errors[is_some] / np.abs(exact[is_some])
        lengths = np.linalg.norm(exact, axis=1)
        products = lengths * np.linalg.norm(found, axis=1)
        # A row that became all zeros has no angle to the trained row; its cosine counts as 0.
        cosines = np.divide((exact * found).sum(axis=1), products, out=np.zeros_like(products), where=products > 0)
        cosines = np.minimum(cosines[lengths > 0], 1.0)
        for what, numbers in (("error", errors), ("relative_error", relative), ("cosine", cosines)):
            if what in self._largest:
                self._largest[what] = max(self._largest[what], float(numbers.max(initial=0)))
            self._sums[what] += float(numbers.sum())
            self._counts[what] += numbers.size

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"dtype": self._dtype}
        for what, total in self._sums.items():
            if what in self._largest:
                found[f"largest_{what}"] = self._largest[what]
            found[f"mean_{what}"] = total / self._counts[what] if self._counts[what] else float(what == "cosine")
        return found


def neighbours_kept(
    trained: Array,
    stored: Array,
    *,
    vocabulary_size: int | None = None,
    progress: Progress = lambda done, rows: None,
) -> dict[str, Any]:
    """Measures the share of nearest neighbours that stay nearest in fewer bits, over MOST_QUERIES rows; returns a JSON
    object.

    A neighbour among the stored rows is a hit if, among the trained rows, it is at least as near as the last of the
    trained neighbours. So equal rows do not count as losses.

    Args:
      trained, stored: [N, D] float32, of the same ids.
      vocabulary_size: V of the table that the rows are a sample of; None: the rows are the whole table.
      progress: called with (queries done, queries).

    Returns:
      recall_at_10 (None if there are fewer than two rows), queries, candidates, rows (of the table), neighbours.
    """
    is_used = np.isfinite(trained).all(axis=1) & (np.abs(trained).max(axis=1) > 0)
    exact, found = unit_rows(trained[is_used]), unit_rows(stored[is_used])
    candidates = len(exact)
    neighbours = min(NEIGHBOURS, candidates - 1)
    record = {
        "queries": min(MOST_QUERIES, candidates),
        "candidates": candidates,
        "rows": len(trained) if vocabulary_size is None else vocabulary_size,
        "neighbours": max(neighbours, 0),
    }
    if neighbours < 1:
        return {"recall_at_10": None, **record}
    queries = np.random.default_rng(_SEED).choice(candidates, record["queries"], replace=False)
    hits = 0
    for start in range(0, len(queries), _BLOCK_ROWS):
        block = queries[start : start + _BLOCK_ROWS]
        near = _others(exact[block] @ exact.T, block)
        last = np.partition(near, -neighbours, axis=1)[:, -neighbours]
        chosen = np.argpartition(_others(found[block] @ found.T, block), -neighbours, axis=1)[:, -neighbours:]
        hits += int((np.take_along_axis(near, chosen, axis=1) >= last[:, None] - _TIE).sum())
        progress(min(start + _BLOCK_ROWS, len(queries)), len(queries))
    return {"recall_at_10": hits / (len(queries) * neighbours), **record}


def reduction_lines(manifest: Manifest) -> list[str]:
    lines = [f"reduced from version {manifest.provenance[REDUCED_FROM_KEY]['of']}"]
    for name, record in manifest.provenance[REDUCED_KEY].items():
        first, *rest = report_lines(name, record)
        lines += [f"  {first}", *(f"    {line}" for line in rest)]
    return [*lines, f"  predictions: {manifest.provenance[REDUCED_FROM_KEY]['predictions']}"]


def report_lines(name: str, record: Mapping[str, Any]) -> list[str]:
    lines = []
    if "bytes_before" in record:
        before, after = record["bytes_before"], record["bytes_after"]
        lines.append(f"{name}  {record['dtype']}, {before:,} bytes before, {after:,} after ({after / before:.1%})")
    lines.append(
        f"error: at most {record['largest_error']:.3g} (bound of {record['dtype']}: {record['error_bound']:.3g})"
    )
    if "mean_error" in record:
        lines[-1] += f", mean {record['mean_error']:.3g}"
        lines.append(
            f"relative error: at most {record['largest_relative_error']:.3g}, mean {record['mean_relative_error']:.3g}"
        )
        lines.append(f"mean cosine between trained and reduced rows: {record['mean_cosine']:.6f}")
    if record.get("recall_at_10") is not None:
        what = (
            "all rows"
            if record["queries"] == record["candidates"]
            else f"a seeded sample of {record['queries']:,} rows"
        )
        lines.append(
            f"recall@{record['neighbours']}: {record['recall_at_10']:.4f} of the nearest neighbours (cosine, exact) of "
            f"{what}, looked for among {record['candidates']:,} of {record['rows']:,}"
        )
    return lines


def _others(cosines: Array, block: Array) -> Array:
    # A row must not count as its own neighbour.
    cosines[np.arange(len(block)), block] = -np.inf
    return cosines


# Key in the manifest's provenance. Its value lists the lookups that compact built again, whose graph nodes are not
# named as adopt names them.
REBUILT_KEY = "rebuilt_lookups"


@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """The plan by which compact() stores tables of an artifact in fewer bits.

    dtypes: table -> dtype that lookups shall read. rebuilt: the lookups to build again: those that read such a table,
    or all lookups. is_alone: whether there are no other signatures, so that the trained tables are left out.
    """

    dtypes: Mapping[str, TableDtype]
    rebuilt: Mapping[str, SignatureEntry]
    is_alone: bool


def plan_reduction(artifact: Path, manifest: Manifest, table_dtype: str | Mapping[str, str]) -> Reduction:
    """Plans how compact() reduces tables to table_dtype, an argument of the same form as in export().

    Raises:
      ExportError: a table or dtype is unknown, a table is reduced already, or a lookup is the model's own graph.
    """
    dtypes = {}
    wanted = chosen_dtypes(table_dtype, list(manifest.tables))
    for name, dtype in wanted.items():
        present = manifest.tables[name].dtype
        if present == dtype:
            continue
        if present != "float32":
            raise ExportError(
                f"table {name!r} is {present} already; reduce a version that has it as float32 to {dtype}, so that its "
                "rows are rounded once"
            )
        dtypes[name] = dtype
    if not dtypes:
        present_dtypes = {name: entry.dtype for name, entry in manifest.tables.items()}
        raise ExportError(f"table_dtype {table_dtype!r} changes no table; the tables are {present_dtypes}")
    definitions = _signature_definitions(artifact)
    own = [
        name
        for name, entry in manifest.signatures.items()
        if entry.kind == "lookup" and _is_own(manifest, name, entry, definitions.get(name))
    ]
    is_alone = set(definitions) <= set(own)
    rebuilt = {}
    for name, entry in manifest.signatures.items():
        tables = {manifest.features[feature].table for feature in entry.features}
        if entry.kind != "lookup" or not (is_alone or tables & set(dtypes)):
            continue
        if name not in own:
            read = sorted(tables & set(dtypes))
            raise ExportError(
                f"signature {name!r} is the model's own lookup: its graph reads the variables of tables {read} itself "
                "and can not be made to read others. Leave those tables out (--table_dtype TABLE=DTYPE for the rest), "
                f"or adopt the SavedModel anew without [signatures.{name}] and with [lookup], whose signatures are ours"
            )
        rebuilt[name] = entry
    return Reduction(dtypes, rebuilt, is_alone)


def reduce_tables(
    artifact: Path,
    manifest: Manifest,
    reduction: Reduction,
    *,
    progress: Callable[[str], Progress] = lambda what: lambda done, rows: None,
) -> Manifest:
    """Rewrites the checkpoint and the graph of an artifact; returns a manifest that describes the reduced tables.

    The caller fills in the manifest's `files` and `parity`.

    Args:
      artifact: a copy that is no version yet; this function changes its files.

    Raises:
      ExportError: a table has numbers that a dtype can not hold, or the graph can not be built.
    """
    records: dict[str, dict[str, Any]] = {}
    places: dict[str, tuple[str, str | None]] = {}
    trained = {manifest.tables[name].variable for name in reduction.dtypes}
    kept = {entry.variable for name, entry in manifest.tables.items() if name not in reduction.dtypes}
    kept |= {entry.scale.variable for entry in manifest.tables.values() if entry.scale is not None}
    old, new = artifact / VARIABLES_PREFIX, artifact / "reduced_variables" / "variables"
    with BundleWriter(new) as writer:
        # If the artifact has only lookups, no signature reads the checkpoint's other variables, so they are not copied.
        writer.copy(old, (lambda key: key in kept) if reduction.is_alone else (lambda key: True))
        for name, dtype in reduction.dtypes.items():
            entry = manifest.tables[name]
            places[name], records[name] = _write_table(artifact, name, entry, dtype, writer, progress)
    for name in reduction.dtypes:
        records[name] |= _neighbours(
            artifact, manifest.tables[name], new, places[name], records[name]["dtype"], progress
        )
    shutil.rmtree(old.parent)
    new.parent.rename(old.parent)
    _remove_parts(artifact, manifest, trained)
    reduced_manifest = dataclasses.replace(
        manifest,
        tables=_tables(artifact, manifest, reduction.dtypes, places),
        provenance={
            **manifest.provenance,
            REDUCED_KEY: {**manifest.provenance.get(REDUCED_KEY, {}), **records},
            REBUILT_KEY: sorted({*manifest.provenance.get(REBUILT_KEY, ()), *reduction.rebuilt}),
        },
    )
    # The module compaction.reduced_lookups is imported late, because its import starts TensorFlow.
    from model_export.compaction.reduced_lookups import rewrite_lookups

    rewrite_lookups(artifact, reduced_manifest, reduction.rebuilt, is_alone=reduction.is_alone)
    return reduced_manifest


def _signature_definitions(artifact: Path) -> dict[str, Any]:
    saved_model = message_class("tensorflow.SavedModel")()
    saved_model.ParseFromString((artifact / "saved_model.pb").read_bytes())
    found: dict[str, Any] = {}
    for graph in saved_model.meta_graphs:
        for name, definition in graph.signature_def.items():
            if name != INIT_SIGNATURE:
                found.setdefault(name, definition)
    return found


def _is_own(manifest: Manifest, name: str, entry: SignatureEntry, definition: Any) -> bool:
    if definition is None or entry.concatenated or any(f.is_foreign for f in entry.features.values()):
        return False
    if ADOPTED_FROM not in manifest.provenance or name in manifest.provenance.get(REBUILT_KEY, ()):
        return True
    # Only graphs.added_lookups.add_lookups names placeholders <signature>_<input> and outputs
    # <signature>_<output>_vectors, so adopt added this lookup.
    return (
        name in SIGNATURE_OF_DEVICE.values()
        and all(info.name == f"{name}_{key}:0" for key, info in definition.inputs.items())
        and all(info.name == f"{name}_{key}_vectors:0" for key, info in definition.outputs.items())
    )


def _write_table(
    artifact: Path,
    name: str,
    entry: TableEntry,
    dtype: TableDtype,
    writer: BundleWriter,
    progress: Callable[[str], Progress],
) -> tuple[tuple[str, str | None], dict[str, Any]]:
    losses, rounding = Losses(dtype), Rounding(name, dtype)
    scales: list[Array] = []
    show = progress(f"reducing {name}")

    def pieces() -> Iterator[Array]:
        for start, rows in table_chunks(artifact, entry):
            numbers, some = rounding.add(rows)
            losses.add(rows, widened(numbers, dtype, some, embedding_dim=entry.embedding_dim))
            if some is not None:
                scales.append(some)
            show(start + len(rows), entry.vocabulary_size)
            yield numbers

    key, scale_key = f"reduced/{name}/numbers", None
    rows, columns = writer.add(key, saved_dtype(dtype), pieces())
    nbytes = rows * columns * np.dtype(TABLE_DTYPES[dtype]).itemsize
    if scales:
        scale_key = f"reduced/{name}/scales"
        writer.add(scale_key, "float32", scales)
        nbytes += 4 * rows
    record = losses.to_json() | {
        "error_bound": rounding.error_bound,
        "bytes_before": entry.nbytes,
        "bytes_after": nbytes,
    }
    return (key, scale_key), record


def _neighbours(
    artifact: Path,
    entry: TableEntry,
    prefix: Path,
    keys: tuple[str, str | None],
    dtype: str,
    progress: Callable[[str], Progress],
) -> dict[str, Any]:
    ids = sample_ids(entry.vocabulary_size, seed=_SEED, limit=MOST_CANDIDATES)
    written = _entry(artifact, prefix, keys, entry, dtype)
    trained, stored = (_rows_of(artifact, part, ids) for part in (entry, written))
    show = progress("looking for neighbours")
    return neighbours_kept(trained, stored, vocabulary_size=entry.vocabulary_size, progress=show)


def _rows_of(artifact: Path, entry: TableEntry, ids: Array) -> Array:
    table = SavedTable(artifact, entry)
    if len(ids) < entry.vocabulary_size:
        return table[ids]
    whole = [table.widened(start, rows) for start, rows in table_chunks(artifact, entry)]
    return np.concatenate(whole)


def _entry(artifact: Path, prefix: Path, keys: tuple[str, str | None], old: TableEntry, dtype: str) -> TableEntry:
    index = read_bundle(prefix)
    key, scale_key = keys
    scale = None if scale_key is None else (scale_key, index[scale_key])
    return table_entry(artifact, key, index[key], scale, packed_dim=packed_dim(dtype, old.embedding_dim))


def _tables(
    artifact: Path, manifest: Manifest, dtypes: Mapping[str, str], places: Mapping[str, tuple[str, str | None]]
) -> dict[str, TableEntry]:
    tables = {}
    for name, entry in manifest.tables.items():
        if name in dtypes:
            tables[name] = _entry(artifact, artifact / VARIABLES_PREFIX, places[name], entry, dtypes[name])
        else:
            keys = (entry.variable, None if entry.scale is None else entry.scale.variable)
            prefix = prefix_of(artifact / entry.file)
            tables[name] = _entry(artifact, prefix, keys, entry, entry.dtype)
    return tables


def _remove_parts(artifact: Path, manifest: Manifest, trained: set[str]) -> None:
    # If a graph holds a table in parts, adopt wrote a whole copy of the table. No signature reads that copy after the
    # reduction, so it is deleted.
    for entry in manifest.tables.values():
        prefix = prefix_of(artifact / entry.file)
        if entry.variable in trained and prefix != artifact / VARIABLES_PREFIX:
            for path in prefix.parent.glob(prefix.name + ".*"):
                path.unlink()
