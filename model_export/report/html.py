"""Renders a report as one HTML page with inline pictures, without network, for light and dark screens.

All text from an artifact is escaped. The page's Content-Security-Policy forbids loading, and all scripts except
pictures.js of this program, with which a reader zooms pictures and sees the nearest rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from model_export.parity.comparison import ParityReport, SignatureParity
from model_export.report import plots
from model_export.report.document import (
    ArtifactReport,
    Curve,
    MetaGraphReport,
    Projection,
    TableReport,
    TableStatistics,
    first_ids,
)
from model_export.report.page import data, details, escape, figure, page, section, short, table
from model_export.report.text import (
    agreement_words,
    bytes_words,
    comparison_words,
    difference_words,
    lookup_words,
    provenance_words,
    signature_words,
    statistics_words,
    tensor_words,
    vocabulary_words,
)
from model_export.statistics.table_health import Rows, TableHealth

_CURVES_PER_CHART = 3


def to_html(report: ArtifactReport) -> str:
    sections = (
        _attention(report),
        _overview(report),
        *(_table(table, report.has_manifest) for table in report.tables),
        _curves(report.curves),
        parity_section(report),
        *(_statistics(entry) for entry in report.statistics),
        _features(report),
        *(_meta_graph(graph) for graph in report.meta_graphs),
        _provenance(report),
        _files(report),
    )
    name = "/".join(Path(report.folder).parts[-2:])
    tables = "tables" if report.has_manifest else "2-D variables"
    summary = (
        f"{len(report.tables)} {tables}, {len(report.features)} features, "
        f"{sum(len(graph.signatures) for graph in report.meta_graphs)} signatures, {bytes_words(report.nbytes)}"
    )
    has_pictures = any(_is_drawn(entry) for entry in report.tables)
    return page(name, summary, sections, has_pictures_of_rows=has_pictures)


def _attention(report: ArtifactReport) -> str:
    parts = []
    if report.disagreements is not None:
        if report.disagreements:
            parts.append(_list("bad", report.disagreements))
        else:
            parts.append(f'<p class="good">Verified: {escape(agreement_words(report.parity))}.</p>')
    if report.findings:
        parts.append(_list("bad", report.findings))
    else:
        parts.append('<p class="good">Nothing stands out in the files and tables that were read.</p>')
    if report.notes:
        parts.append(_list("note", report.notes))
    return section("Needs attention", *parts)


def _list(kind: str, lines: Iterable[str]) -> str:
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _overview(report: ArtifactReport) -> str:
    if not report.tables:
        return ""
    rows = [
        [
            entry.name,
            f"{entry.vocabulary_size:,}",
            f"{entry.embedding_dim:,}",
            bytes_words(entry.nbytes),
            *_health_cells(entry.health),
            ", ".join(entry.features),
        ]
        for entry in report.tables
    ]
    heads = ("table", "rows", "dim", "size", "median norm", "NaN rows", "Inf rows", "dead", "near zero", "equal")
    title = "Tables" if report.has_manifest else "2-D variables"
    return section(title, table((*heads, "read by"), rows, "lrrrrrrrrrl"))


def _health_cells(health: TableHealth | None) -> list[str]:
    if health is None:
        return ["not read", *[""] * 5]
    median = "" if health.norms is None else short(health.norms.median)
    groups = (health.nan, health.inf, health.dead, health.near_zero, health.duplicates)
    return [median, *("?" if rows is None else f"{rows.count:,}" for rows in groups)]


def _table(entry: TableReport, has_manifest: bool) -> str:
    health = entry.health
    if health is None or health.histogram is None or health.norms is None:
        return ""
    drawn = [figure("Norms of its rows", _norm_caption(health), plots.norm_histogram(entry.name, health.histogram))]
    if entry.projection is not None and _is_drawn(entry):
        picture = plots.scatter(entry.name, entry.projection) + _nearest(entry.projection)
        has_labels = bool(entry.projection.labels)
        drawn.append(figure(*_picture_words(entry.projection), picture, is_wide=has_labels, kind="rows"))
    kind = "Table" if has_manifest else "Variable"
    return section(f"{kind} {entry.name}", f'<div class="figures">{"".join(drawn)}</div>', _rows_list(health))


def _is_drawn(entry: TableReport) -> bool:
    return entry.projection is not None and len(entry.projection.ids) > 1


def _nearest(projection: Projection) -> str:
    nearest = {
        row: [(near, round(cosine, 4)) for near, cosine in rows] for row, rows in sorted(projection.nearest.items())
    }
    return data({"nearest": nearest, "names": projection.nearest_names, "searched": f"{len(nearest):,}"})


def _norm_caption(health: TableHealth) -> str:
    if health.norms is None:
        return ""
    spread = dict(health.norms.percentiles)
    return (
        f"min {short(health.norms.minimum)}, 5% {short(spread[5.0])}, median {short(health.norms.median)}, mean "
        f"{short(health.norms.mean)}, 95% {short(spread[95.0])}, max {short(health.norms.maximum)}"
    )


def _picture_words(projection: Projection) -> tuple[str, str]:
    caption = f"{len(projection.ids):,} rows; the axes hold {sum(projection.explained):.0%} of their variance"
    if projection.agreement is None or projection.chance is None:
        return "Its rows in two dimensions (PCA)", caption
    caption += (
        f". In all dimensions {projection.agreement:.0%} of rows have a nearest neighbour with the same "
        f"{projection.label_title}; by chance {projection.chance:.0%} would."
    )
    return f"Its rows in two dimensions (PCA), by {projection.label_title}", caption


def _rows_list(health: TableHealth) -> str:
    groups: tuple[tuple[str, Rows | None], ...] = (
        ("rows with NaN", health.nan),
        ("rows with Inf", health.inf),
        ("dead rows: all zeros, they add nothing to a lookup", health.dead),
        ("rows nearly zero: below 1% of the median norm", health.near_zero),
        ("rows equal to an earlier row bit for bit", health.duplicates),
    )
    lines = [f"{rows.count:,} {name}: {first_ids(rows)}" for name, rows in groups if rows is not None and rows.count]
    return _list("note", lines) if lines else ""


def _curves(curves: Sequence[Curve]) -> str:
    # Curves whose names have the same last word, such as train_loss and held_out_loss, share a chart; other curves
    # differ in scale.
    charts: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        charts.setdefault((curve.name.rsplit("_", 1)[-1], curve.x_name), []).append(curve)
    drawn = [
        figure(", ".join(curve.name for curve in part), _curve_caption(part), plots.line_chart(part))
        for group in charts.values()
        for part in (group[i : i + _CURVES_PER_CHART] for i in range(0, len(group), _CURVES_PER_CHART))
    ]
    return section("Training", f'<div class="figures">{"".join(drawn)}</div>') if drawn else ""


def _curve_caption(curves: Sequence[Curve]) -> str:
    return "; ".join(
        f"{curve.name}: {curve.points[0][1]:.4g} to {curve.points[-1][1]:.4g}, lowest "
        f"{min(value for _, value in curve.points):.4g}"
        for curve in curves
    )


def _statistics(entry: TableStatistics) -> str:
    drawn = []
    if entry.hot_ids:
        hot = [(f"id {row}", count) for row, count in entry.hot_ids[:12]]
        drawn.append(figure("Hot ids", "times in the sample", plots.ranking(f"Hot ids of table {entry.table}", hot)))
    if entry.ids_per_example:
        title = f"Ids per example of table {entry.table}"
        chart = plots.columns(title, "ids", "examples", entry.ids_per_example)
        drawn.append(figure("Ids per example", "", chart))
    for strategy, loads in entry.partitions.items():
        if sum(loads):
            title = f"Balance of table {entry.table} over {len(loads)} partitions, {strategy}"
            chart = plots.columns(title, "partition", "ids", list(enumerate(loads)))
            caption = f"the fullest gets {entry.imbalance(strategy):.2f} times the mean"
            drawn.append(figure(f"Balance, partition strategy {strategy}", caption, chart))
    words = f"<p>{escape(statistics_words(entry))}</p>"
    title = f"Lookups of {entry.table}, sampled in training"
    return section(title, words, f'<div class="figures">{"".join(drawn)}</div>')


def _features(report: ArtifactReport) -> str:
    if not report.features:
        return ""
    rows = [[feature.name, feature.table, vocabulary_words(feature)] for feature in report.features]
    return section("Features", table(("feature", "table", "takes"), rows))


def _meta_graph(graph: MetaGraphReport) -> str:
    parts = []
    for signature in graph.signatures:
        tensors = [
            [direction, tensor.name, tensor_words(tensor)]
            for direction, found in (("in", signature.inputs), ("out", signature.outputs))
            for tensor in found
        ]
        lookups = [[name, lookup_words(feature)] for name, feature in signature.features.items()]
        body = table(("", "tensor", "dtype and shape"), tensors)
        if lookups:
            body += table(("feature", "inputs, combiner, policies"), lookups)
        parts.append(details(f"{signature.name} ({signature_words(signature)})", body))
    writer = f", written by TensorFlow {graph.tensorflow_version}" if graph.tensorflow_version else ""
    return section(f"Signatures of {{{', '.join(graph.tags)}}}{writer}", *parts)


def _provenance(report: ArtifactReport) -> str:
    rows = [[name, provenance_words(value)] for name, value in report.provenance.items()]
    return section("Provenance", table(("", "value"), rows)) if rows else ""


def _files(report: ArtifactReport) -> str:
    rows = [[name, f"{size:,}"] for name, size in report.files.items()]
    return section("Files", details(f"{len(rows)} files", table(("file", "bytes"), rows, "lr")))


def parity_section(report: ArtifactReport) -> str:
    """Returns HTML of the errors per output, and of rows in which two lookups differ; "" without a verification."""
    if report.parity is None:
        return ""
    errors = table(
        ("signature", "held against", "cases", "refused", "output", "rows", "max error", "relative"),
        _error_rows(report.parity),
        "llrrlrrr",
    )
    differences = [
        [name, difference_words(difference)]
        for name, entry in _signatures(report.parity)
        for difference in entry.differences
    ]
    found = table(("signature", "difference and reason"), differences) if differences else ""
    served = [
        [name, words]
        for name, entry in _signatures(report.parity)
        for words in (*map(comparison_words, entry.comparisons), *(f"not compared: {t}" for t in entry.uncompared))
    ]
    found += table(("signature", "the server's code against the graph"), served) if served else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.parity.notes)
    when = "verified now" if report.disagreements is not None else "as the exporter found it"
    return section(f"Parity, {when}", errors, found, notes)


def _signatures(parity: ParityReport) -> Iterator[tuple[str, SignatureParity]]:
    yield from parity.signatures.items()
    for name, entry in parity.lowered.items():
        yield f"{name} of {{serve,tpu}}, lowered to a CPU", entry


def _error_rows(parity: ParityReport) -> Iterator[list[str]]:
    for name, entry in _signatures(parity):
        first = [name, entry.reference, f"{entry.cases:,}", f"{entry.refused:,}"]
        for output, found in entry.outputs.items():
            errors = [f"{found.max_absolute_error:.1e}", f"{found.max_relative_error:.1e}"]
            yield [*first, output, f"{found.rows:,}" if found.rows else "", *errors]
            first = ["", "", "", ""]
        if not entry.outputs:
            yield [*first, "", "", "", ""]
