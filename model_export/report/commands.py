"""Implements the commands `model-export inspect` and `model-export verify`, which write to stdout, file and terminal.

With --json stdout holds the JSON document only; progress and messages go to stderr. --projector writes tables as files
of TensorBoard's projector: vectors.tsv and metadata.tsv of each table, one configuration.

Source of these formats: tensorboard/plugins/projector (projector_config.proto, projector_plugin.py) of TensorBoard
2.21.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.text_encoding import CEscape
from tqdm import tqdm

from model_export.errors import ExportError
from model_export.folder_checks import check_described, check_saved_model
from model_export.parity.comparison import Disagreements, ParityReport
from model_export.report.build import ReportOptions, build_report, read_table_labels, row_names
from model_export.report.document import ArtifactReport, TableReport
from model_export.report.rendering import to_html, to_text, verification_text
from model_export.report.table_files import declared_tables, map_table, matrix_variables
from model_export.row_names import LabelFile, Labels
from model_export.statistics.table_health import TableRows, sample_ids
from model_export.statistics.table_statistics import TableStatistics
from service.artifact.manifest import Manifest
from service.comparison.document import plain
from service.errors import os_errors_as

CONFIG = "projector_config.pbtxt"
# Maximal number of points that TensorBoard reads for a table.
MAX_ROWS = 100_000
_BLOCK_ROWS = 1024
# Fixed seed: each report on a table draws the same sample of rows.
_SEED = 0


@dataclass(frozen=True, slots=True)
class ProjectedTable:
    """Counts of one table written for TensorBoard's projector. rows: written rows. left_out: sampled rows with NaN or
    infinity.
    """

    name: str
    rows: int
    left_out: int


def write_projector(
    artifact: Path, folder: Path, max_rows: int, labels: tuple[LabelFile, ...] = ()
) -> list[ProjectedTable]:
    """Writes at most max_rows rows of each table of an artifact into a folder, as files of TensorBoard's projector.

    The folder may exist. The configuration is written last: without it TensorBoard shows nothing of the folder.

    Raises:
      ExportError: a file can not be written, or a label file can not be read.
      ArtifactError: a table or its vocabulary can not be read.
    """
    manifest = Manifest.read(artifact)
    tables = matrix_variables(artifact) if manifest is None else declared_tables(manifest)
    found = read_table_labels(artifact, manifest, tables, labels)
    written, entries = [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).unlink(missing_ok=True)
        for number, table in enumerate(tables):
            # A table's name may hold characters that a file's name can not hold, so the files are numbered.
            paths = [folder / f"{kind}-{number}.tsv" for kind in ("vectors", "metadata")]
            rows = map_table(artifact, table)
            ids = sample_ids(rows.shape[0], seed=_SEED, limit=max_rows)
            names = row_names(artifact, manifest, table.name, ids.tolist())
            kept = _write_table(rows, ids, names, found.get(table.name), *paths)
            written.append(ProjectedTable(table.name, kept, len(ids) - kept))
            if kept:
                entries.append(_entry(table, kept, *(path.name for path in paths)))
        (folder / CONFIG).write_text("".join(entries), encoding="utf-8")
    except OSError as error:
        raise ExportError(f"cannot write {error.filename or folder}: {error.strerror or error}") from error
    return written


def _write_table(
    rows: TableRows, ids: np.ndarray, names: Mapping[int, str], labels: Labels | None, vectors: Path, metadata: Path
) -> int:
    kept = 0
    with vectors.open("w", encoding="utf-8") as numbers, metadata.open("w", encoding="utf-8") as lines:
        lines.write(_line(("name", "row", *(() if labels is None else (labels.title,)))))
        for start in range(0, len(ids), _BLOCK_ROWS):
            block = ids[start : start + _BLOCK_ROWS]
            # TensorBoard's projector computes in float32; nine digits are enough for each float32 number.
            values = np.asarray(rows[block], np.float32)
            is_finite = np.isfinite(values).all(axis=1)
            np.savetxt(numbers, values[is_finite], fmt="%.9g", delimiter="\t")
            for row in block[is_finite].tolist():
                name = names.get(row) if labels is None else labels.names.get(row) or names.get(row)
                shown = (name or f"row {row}", str(row))
                lines.write(_line(shown if labels is None else (*shown, labels.labels.get(row, ""))))
            kept += int(is_finite.sum())
    return kept


def _line(cells: Sequence[str]) -> str:
    # A tab or line break inside a cell would begin another cell or another point of the TSV file.
    return "\t".join(" ".join(cell.splitlines()).replace("\t", " ") for cell in cells) + "\n"


def _entry(table: TableReport, rows: int, vectors: str, metadata: str) -> str:
    return (
        f'embeddings {{\n  tensor_name: "{CEscape(table.name.encode(), as_utf8=False)}"\n'
        f"  tensor_shape: {rows}\n  tensor_shape: {table.embedding_dim}\n"
        f'  tensor_path: "{vectors}"\n  metadata_path: "{metadata}"\n}}\n'
    )


def inspect(arguments: argparse.Namespace) -> None:
    """Prints the report on an artifact, its faults included; raises ExportError or ArtifactError if there can be no
    report.
    """
    options = ReportOptions(
        reads_tables=not arguments.fast,
        has_projections=arguments.html is not None,
        labels=tuple(arguments.labels),
        statistics=arguments.statistics,
        run=arguments.run,
    )
    check_saved_model(arguments.artifact)
    if arguments.fast and arguments.labels:
        raise ExportError("--labels needs the tables to be read; leave out --fast")
    report = _build(arguments.artifact, options)
    if arguments.json:
        sys.stdout.write(to_json(report))
    elif arguments.html is None:
        sys.stdout.write(to_text(report))
    _write_html(report, arguments)
    if arguments.projector is not None:
        _write_projector(arguments)


def verify(arguments: argparse.Namespace) -> None:
    """Verifies an artifact and prints the result of every comparison.

    Raises:
      ExportError: the artifact has faults, all of which were printed; or it can not be checked.
      ArtifactError: the artifact can not be read.
    """
    # Read the manifest before the slow comparison, so that a bad manifest is refused early.
    check_described(arguments.artifact)
    _remark(arguments, "starting TensorFlow")
    from model_export.parity.verify import verify_artifact

    parity: ParityReport | None
    faults: tuple[str, ...] = ()
    try:
        parity = verify_artifact(arguments.artifact)
    except Disagreements as found:
        parity, faults = found.report, found.lines
    if not arguments.json:
        sys.stdout.write(verification_text(arguments.artifact, parity, faults))
    if arguments.json or arguments.html is not None:
        report = _build(arguments.artifact, ReportOptions(has_projections=arguments.html is not None))
        report = dataclasses.replace(report, parity=parity, disagreements=faults)
        if arguments.json:
            sys.stdout.write(to_json(report))
        _write_html(report, arguments)
    if faults:
        count = "1 disagreement" if len(faults) == 1 else f"{len(faults)} disagreements"
        raise ExportError(f"{arguments.artifact} is not what it says: {count}, listed on stdout")


def _build(artifact: Path, options: ReportOptions) -> ArtifactReport:
    with shown_rows() as shown:
        return build_report(artifact, options, progress=lambda table: shown(f"reading {table}"))


@contextmanager
def shown_rows() -> Iterator[Callable[[str], Callable[[int, int | None], None]]]:
    """Shows a progress bar; yields a function that labels it, and returns a function that sets (rows done, of rows)."""
    with tqdm(unit="row", unit_scale=True, mininterval=0.5, leave=False, disable=None, file=sys.stderr) as bar:

        def show(done: int, rows: int | None) -> None:
            bar.total = rows
            bar.update(done - bar.n)

        def progress(what: str) -> Callable[[int, int | None], None]:
            bar.reset()
            bar.set_description(what)
            return show

        yield progress


def _write_html(report: ArtifactReport, arguments: argparse.Namespace) -> None:
    if arguments.html is None:
        return
    with os_errors_as(ExportError, f"cannot write {arguments.html}"):
        arguments.html.write_text(to_html(report), encoding="utf-8")
    _remark(arguments, f"report written to {arguments.html}")


def _write_projector(arguments: argparse.Namespace) -> None:
    tables = write_projector(arguments.artifact, arguments.projector, arguments.projector_rows, tuple(arguments.labels))
    for table in tables:
        left_out = f", {table.left_out:,} not finite and left out" if table.left_out else ""
        _remark(arguments, f"projector: {table.rows:,} rows of table {table.name!r}{left_out}")
    _remark(arguments, f"run: tensorboard --logdir {arguments.projector}")


def _remark(arguments: argparse.Namespace, text: str) -> None:
    stream = sys.stderr if arguments.json else sys.stdout
    stream.write(text + "\n")
    stream.flush()


REPORT_VERSION = 1
_HOT_IDS = 20


def to_json(report: ArtifactReport) -> str:
    """Returns the report on an artifact as one strict JSON object, with the names of model_export.report.document.

        artifact            the folder; has_manifest, nbytes, files {path: bytes}
        meta_graphs[]       tags, tensorflow_version, signatures[]: name, kind, method, device, batch_sizes,
                            inputs[] and outputs[] (name, dtype, shape, is_optional), features {name: LookupFeature}
        tables[]            name, variable, vocabulary_size, embedding_dim, dtype, nbytes, file, offset, features,
                            slices, scale, unread, health (TableHealth), projection (null without --html and --labels)
        features[]          name, table, vocabulary_name, vocabulary
        curves[]            name, x_name, points [[x, value]]
        statistics[]        table, rows, features, steps, sampled_steps, examples, ids, bad_ids, mean_ids, max_ids,
                            distinct_ids, distinct_is_exact, ids_per_example [[ids, examples]], hot_ids [[id, times]],
                            partitions {strategy: [ids]}
        parity              signatures {name: ...}, lowered {name: ...}, notes: ParityReport.to_json
        disagreements       null, or after `verify` a list, empty if there are no faults
        provenance, findings[], notes[]

    A number that is NaN or infinite becomes null. Within one report_version keys may be added, but never removed.
    """
    fields = {f.name: getattr(report, f.name) for f in dataclasses.fields(report)}
    document = {
        "report_version": REPORT_VERSION,
        "artifact": fields.pop("folder"),
        "nbytes": report.nbytes,
        **fields,
        "statistics": list(map(_statistics, report.statistics)),
        "parity": None if report.parity is None else report.parity.to_json(),
    }
    return json.dumps(plain(document), indent=1, allow_nan=False) + "\n"


def _statistics(found: TableStatistics) -> dict[str, Any]:
    histogram = found.ids_per_example_histogram
    return {
        "table": found.table.name,
        "rows": found.table.vocabulary_size,
        "features": found.table.features,
        **{name: getattr(found, name) for name in ("steps", "sampled_steps", "examples", "ids", "bad_ids")},
        "mean_ids": found.mean_ids_per_example,
        "max_ids": found.max_ids_per_example,
        "distinct_ids": found.distinct_ids,
        "distinct_is_exact": found.distinct_is_exact,
        "ids_per_example": [(count, int(histogram[count])) for count in np.flatnonzero(histogram).tolist()],
        "hot_ids": [(hot.id, hot.count) for hot in found.hot_ids(_HOT_IDS)],
        "partitions": found.partition_loads,
    }
