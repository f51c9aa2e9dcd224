"""Finds the problems in the data of a report, and describes each in one sentence."""

from __future__ import annotations

from collections.abc import Iterator

from model_export.report.document import ArtifactReport, TableReport
from model_export.statistics.table_health import Rows, TableHealth
from service.artifact.manifest import MANIFEST_PATH, Manifest

# Share of dead or equal rows above which the report lists a table as a finding. A smaller share is normal: a vocabulary
# has some unused ids.
_MANY = 0.1
# Imbalance above which the report lists a table as a finding: the number of ids that were looked up in the table's
# fullest partition, divided by the mean of all partitions.
_UNEVEN = 2.0


def findings(report: ArtifactReport, manifest: Manifest | None) -> Iterator[str]:
    yield from _file_findings(report, manifest)
    present = {signature.name for graph in report.meta_graphs for signature in graph.signatures}
    for name in sorted(set() if manifest is None else set(manifest.signatures) - present):
        yield f"signature {name!r} is in the manifest, but not in saved_model.pb"
    for table in report.tables:
        if table.unread is not None:
            yield f"table {table.name!r} was not read: {table.unread}"
        elif table.health is not None:
            yield from _health_findings(table, table.health)
    for statistics in report.statistics:
        for strategy, loads in statistics.partitions.items():
            if (imbalance := statistics.imbalance(strategy)) is not None and imbalance > _UNEVEN:
                yield (
                    f"table {statistics.table!r}: with partition strategy {strategy!r} the fullest of {len(loads)} "
                    f"partitions gets {imbalance:.1f} times the mean of them"
                )


def first_ids(rows: Rows) -> str:
    """Returns a text of the first ids in a set of rows: "rows 3, 5, 8, ..."."""
    text = ", ".join(map(str, rows.first_ids))
    more = ", ..." if rows.count > len(rows.first_ids) else ""
    return f"{'row' if rows.count == 1 else 'rows'} {text}{more}"


def _file_findings(report: ArtifactReport, manifest: Manifest | None) -> Iterator[str]:
    if manifest is None or not manifest.files:
        return
    found = {name: size for name, size in report.files.items() if name != MANIFEST_PATH}
    for name in sorted(set(found) | set(manifest.files)):
        if name not in found:
            yield f"file {name} is missing"
        elif name not in manifest.files:
            yield f"file {name} is not in the manifest"
        elif found[name] != manifest.files[name]:
            yield f"file {name} has {found[name]:,} bytes, the manifest says {manifest.files[name]:,}"


def _health_findings(table: TableReport, health: TableHealth) -> Iterator[str]:
    name = f"table {table.name!r}"
    for kind, values, rows in (("NaN", health.nan_values, health.nan), ("Inf", health.inf_values, health.inf)):
        if rows.count:
            yield f"{name}: {values:,} {kind} in {rows.count:,} of {health.rows:,} rows: {first_ids(rows)}"
    if health.dead.count > _MANY * health.rows:
        yield (
            f"{name}: {health.dead.count:,} of {health.rows:,} rows are all zeros and add nothing to a lookup: "
            f"{first_ids(health.dead)}"
        )
    if health.duplicates is not None and health.duplicates.count > _MANY * health.rows:
        yield (
            f"{name}: {health.duplicates.count:,} of {health.rows:,} rows equal an earlier row bit for bit, as rows "
            f"that were never trained do: {first_ids(health.duplicates)}"
        )
