"""The sections of a report on an artifact: their sentences, tables and pictures. rendering.py renders them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from model_export.compaction.reduction import report_lines
from model_export.graphs.reduced_table import REDUCED_KEY
from model_export.parity.comparison import BitComparison, DeviceDifference, ParityReport, SignatureParity
from model_export.report import plots
from model_export.report.document import (
    ArtifactReport,
    Curve,
    FeatureReport,
    MetaGraphReport,
    Projection,
    SignatureReport,
    TableReport,
    TensorReport,
    first_ids,
)
from model_export.report.page import data, short
from model_export.statistics.table_health import Histogram, Norms, Rows, TableHealth
from model_export.statistics.table_statistics import TableStatistics
from service.artifact.manifest import LookupFeature, VocabularyEntry

_BARS = " ▁▂▃▄▅▆▇█"
_CURVES_PER_CHART = 3


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences. kind: "bad", "good", "note", or "" for plain facts."""

    lines: Sequence[str]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of plain text. align: an "r" for each right-aligned column of a page."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture. draw: returns its HTML. text: what a terminal shows in its place. is_wide, kind: as in page.figure."""

    title: str
    caption: str
    draw: Callable[[], str]
    text: str = ""
    is_wide: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A titled part of a section, which a page shows when the reader opens it."""

    title: str
    blocks: Sequence[Lines | Table | Figure]


Block = Lines | Table | Figure | Group


@dataclass(frozen=True, slots=True)
class Section:
    """A titled section of a report."""

    title: str
    blocks: Sequence[Block]


def sections(report: ArtifactReport) -> Iterator[Section]:
    """Yields the sections of a report, those that need attention first."""
    if report.disagreements is not None:
        verified = Lines([f"Verified: {agreement_words(report.parity)}."], "good")
        yield Section("Verification", [Lines(report.disagreements, "bad") if report.disagreements else verified])
    fine = Lines(["Nothing stands out in the files and tables that were read."], "good")
    found = Lines(report.findings, "bad") if report.findings else fine
    yield Section("Needs attention", [found, Lines(report.notes, "note")])
    yield from _tables(report)
    if charts := [*_curves(report.curves)]:
        yield Section("Training", charts)
    if report.parity is not None:
        when = "verified now" if report.disagreements is not None else "as the exporter found it"
        yield Section(f"Parity, {when}", parity_blocks(report.parity))
    for entry in report.statistics:
        yield Section(f"Lookups of {entry.table.name}, sampled in training", [*_statistics(entry)])
    if report.features:
        rows = [[feature.name, feature.table, vocabulary_words(feature)] for feature in report.features]
        yield Section("Features", [Table(("feature", "table", "takes"), rows)])
    yield from map(_meta_graph, report.meta_graphs)
    if report.provenance:
        known = [[name, provenance_words(value)] for name, value in report.provenance.items()]
        yield Section("Provenance", [Table(("", "value"), known)])


def _tables(report: ArtifactReport) -> Iterator[Section]:
    if not report.tables:
        return
    heads = ("table", "rows", "dim", "size", "median norm", "NaN rows", "Inf rows", "dead", "near zero", "equal")
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
    title = "Tables" if report.has_manifest else "2-D variables"
    yield Section(title, [Table((*heads, "read by"), rows, "lrrrrrrrrrl")])
    kind = "Table" if report.has_manifest else "Variable"
    for entry in report.tables:
        losses = report.provenance.get(REDUCED_KEY, {}).get(entry.name)
        yield Section(f"{kind} {entry.name}", [*_table(entry, losses)])


def _health_cells(health: TableHealth | None) -> list[str]:
    if health is None:
        return ["not read", *[""] * 5]
    median = "" if health.norms is None else short(health.norms.median)
    groups = (health.nan, health.inf, health.dead, health.near_zero, health.duplicates)
    return [median, *("?" if rows is None else f"{rows.count:,}" for rows in groups)]


def _table(entry: TableReport, losses: Mapping[str, Any] | None) -> Iterator[Block]:
    nbytes = entry.nbytes + (entry.scale.nbytes if entry.scale else 0)
    lines = [f"{entry.vocabulary_size:,} x {entry.embedding_dim:,} {entry.dtype}, {bytes_words(nbytes)}"]
    if losses:
        lines += report_lines("differs from the trained table", losses)
    if entry.features:
        lines.append(f"read by {', '.join(entry.features)}")
    if entry.unread is not None:
        lines.append(f"not read: {entry.unread}")
    health, picture = entry.health, entry.projection
    yield Lines([*lines, *([] if health is None else _defects(health))])
    if health is not None and health.norms is not None and health.histogram is not None:
        draw = partial(plots.norm_histogram, entry.name, health.histogram)
        yield Figure("Norms of its rows", _norm_words(health.norms), draw, _norm_spark(health.histogram))
    if picture is not None and is_drawn(entry):
        title, caption = _picture_words(picture)
        draw = partial(_scatter, entry.name, picture)
        yield Figure(title, caption, draw, is_wide=bool(picture.labels), kind="rows")


def is_drawn(entry: TableReport) -> bool:
    return entry.projection is not None and len(entry.projection.ids) > 1


def _defects(health: TableHealth) -> Iterator[str]:
    groups: tuple[tuple[str, Rows | None], ...] = (
        ("rows with NaN", health.nan),
        ("rows with Inf", health.inf),
        ("dead rows: all zeros, they add nothing to a lookup", health.dead),
        ("rows nearly zero: below 1% of the median norm", health.near_zero),
        ("rows equal to an earlier row bit for bit", health.duplicates),
    )
    found = [(name, rows) for name, rows in groups if rows is not None and rows.count]
    if not found:
        yield "no NaN, no Inf, no dead, nearly zero or equal rows"
    for name, rows in found:
        yield f"{rows.count:,} ({rows.count / health.rows:.1%}) {name}: {first_ids(rows)}"


def _norm_words(norms: Norms) -> str:
    spread = dict(norms.percentiles)
    figures = {"min": norms.minimum, "5%": spread[5.0], "median": norms.median, "mean": norms.mean, "95%": spread[95.0]}
    return ", ".join(f"{name} {short(value)}" for name, value in {**figures, "max": norms.maximum}.items())


def spark(edges: Sequence[float], counts: Sequence[int]) -> str:
    """Draws the bars of a histogram as one line of text, between its lowest and its highest edge."""
    top = max(counts) or 1
    # The height of a histogram's bar is rounded up, so that a bin with few rows still gets the smallest bar.
    bars = "".join(_BARS[-(-8 * count // top)] for count in counts)
    return f"{short(edges[0])} |{bars}| {short(edges[-1])}"


def _norm_spark(histogram: Histogram) -> str:
    beyond = f", {histogram.above:,} rows above" if histogram.above else ""
    return spark(histogram.edges, histogram.counts) + beyond


def _scatter(table: str, projection: Projection) -> str:
    nearest = {
        row: [(near, round(cosine, 4)) for near, cosine in rows] for row, rows in sorted(projection.nearest.items())
    }
    known = {"nearest": nearest, "names": projection.nearest_names, "searched": f"{len(nearest):,}"}
    return plots.scatter(table, projection) + data(known)


def _picture_words(projection: Projection) -> tuple[str, str]:
    caption = f"{len(projection.ids):,} rows; the axes hold {sum(projection.explained):.0%} of their variance"
    if projection.agreement is None or projection.chance is None:
        return "Its rows in two dimensions (PCA)", caption
    caption += (
        f". In all dimensions {projection.agreement:.0%} of rows have a nearest neighbour with the same "
        f"{projection.label_title}; by chance {projection.chance:.0%} would."
    )
    return f"Its rows in two dimensions (PCA), by {projection.label_title}", caption


def _curves(curves: Sequence[Curve]) -> Iterator[Block]:
    # Curves whose names have the same last word, such as train_loss and held_out_loss, share a chart; other curves
    # differ in scale.
    charts: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        charts.setdefault((curve.name.rsplit("_", 1)[-1], curve.x_name), []).append(curve)
    for group in charts.values():
        for part in (group[i : i + _CURVES_PER_CHART] for i in range(0, len(group), _CURVES_PER_CHART)):
            title, caption = ", ".join(curve.name for curve in part), "; ".join(map(_curve_words, part))
            yield Figure(title, caption, partial(plots.line_chart, part))


def _curve_words(curve: Curve) -> str:
    (first_x, first), (last_x, last) = curve.points[0], curve.points[-1]
    best_x, best = min(curve.points, key=lambda point: point[1])
    return (
        f"{curve.name} {first:.4g} at {curve.x_name} {first_x:g} -> {last:.4g} at {last_x:g}, lowest {best:.4g} at "
        f"{best_x:g}"
    )


def _statistics(entry: TableStatistics) -> Iterator[Block]:
    name = entry.table.name
    yield Lines([statistics_words(entry)])
    if hot := [(f"id {one.id}", one.count) for one in entry.hot_ids(12)]:
        draw = partial(plots.ranking, f"Hot ids of table {name}", hot)
        yield Figure("Hot ids", "times in the sample", draw, ", ".join(f"{what} ({count:,})" for what, count in hot))
    histogram = entry.ids_per_example_histogram
    if counts := [(ids, int(histogram[ids])) for ids in np.flatnonzero(histogram).tolist()]:
        draw = partial(plots.columns, f"Ids per example of table {name}", "ids", "examples", counts)
        yield Figure("Ids per example", "", draw)
    for strategy, loads in entry.partition_loads.items():
        if sum(loads):
            title = f"Balance of table {name} over {len(loads)} partitions, {strategy}"
            draw = partial(plots.columns, title, "partition", "ids", list(enumerate(loads)))
            caption = f"the fullest gets {entry.imbalance(strategy):.2f} times the mean"
            yield Figure(f"Balance, partition strategy {strategy}", caption, draw)


def _meta_graph(graph: MetaGraphReport) -> Section:
    writer = f", written by TensorFlow {graph.tensorflow_version}" if graph.tensorflow_version else ""
    groups = [_signature(signature) for signature in graph.signatures]
    return Section(f"Signatures of {{{','.join(graph.tags)}}}{writer}", groups or [Lines(["none"])])


def _signature(signature: SignatureReport) -> Group:
    tensors = [
        [direction, tensor.name, tensor_words(tensor)]
        for direction, found in (("in", signature.inputs), ("out", signature.outputs))
        for tensor in found
    ]
    lookups = [[name, lookup_words(feature)] for name, feature in signature.features.items()]
    blocks = [
        Table(("", "tensor", "dtype and shape"), tensors),
        *([Table(("feature", "inputs, combiner, policies"), lookups)] if lookups else ()),
    ]
    return Group(f"{signature.name} ({signature_words(signature)})", blocks)


def parity_blocks(parity: ParityReport) -> list[Block]:
    """Returns the results of a verification: what was compared, errors per output, and rows that differ."""
    named = [*_compared_signatures(parity)]
    errors = [
        [
            *(name, output, f"{one.rows:,}" if one.rows else ""),
            *(f"{error:.1e}" for error in (one.max_absolute_error, one.max_relative_error)),
        ]
        for name, entry in named
        for output, one in entry.outputs.items()
    ]
    served = [
        [name, words]
        for name, entry in named
        for words in (*map(comparison_words, entry.comparisons), *(f"not compared: {t}" for t in entry.uncompared))
    ]
    differences = [[name, difference_words(one)] for name, entry in named for one in entry.differences]
    tables = (
        Table(("signature", "output", "rows", "max error", "relative"), errors, "llrrr"),
        Table(("signature", "difference and reason"), differences),
        Table(("signature", "the server's code against the graph"), served),
    )
    compared = Lines([f"{name}: {_compared_words(entry)}" for name, entry in named])
    return [compared, *(table for table in tables if table.rows), Lines(parity.notes, "note")]


def _compared_words(parity: SignatureParity) -> str:
    if parity.reference == "nothing":
        return (f"{parity.cases} requests only run: " if parity.cases else "") + "no reference answers"
    refused = f", {parity.refused} rightly refused" if parity.refused else ""
    return f"{parity.cases} requests: its graph in TensorFlow against the {parity.reference}{refused}"


def _compared_signatures(parity: ParityReport) -> Iterator[tuple[str, SignatureParity]]:
    yield from parity.signatures.items()
    for name, entry in parity.lowered.items():
        yield f"{name} of {{serve,tpu}}, lowered to a CPU", entry


def agreement_words(parity: ParityReport | None) -> str:
    signatures = {} if parity is None else {**parity.signatures, **parity.lowered}
    unchecked = [name for name, entry in signatures.items() if not entry.is_compared]
    partly = [name for name, entry in signatures.items() if entry.is_compared and entry.uncompared]
    if not unchecked and not partly:
        return "files, index, manifest and every signature agree"
    lacking = [f"NOT compared: {', '.join(unchecked)}"] if unchecked else []
    lacking += [f"compared in part only: {', '.join(partly)}"] if partly else []
    return f"files, index, manifest and every answer compared agree; {'; '.join(lacking)}"


_BAD_ID = {
    "error": "is refused",
    "drop": "is dropped",
    "drop_negative": "below 0 is dropped, any other refused",
    "clamp": "reads the nearest row",
    "wrap": "below 0 counts from the table's end, any other refused",
}


def lookup_words(feature: LookupFeature) -> str:
    """Describes a feature's inputs and policies: "genres__values genres__row_splits: mean, at most 8 ids, ..."."""
    inputs = " ".join(name for name in (feature.ids, feature.row_splits, feature.weights) if name)
    parts = [_combination(feature)]
    if feature.max_ids_per_row is not None and feature.combiner:
        longer = "a longer row is cut" if feature.on_too_many_ids == "truncate" else "a longer row is refused"
        parts.append(f"at most {feature.max_ids_per_row} ids ({longer})")
    bad = _BAD_ID.get(feature.on_bad_id, f"reads row {feature.default_row}")
    parts.append(f"an id outside the table {bad}")
    if feature.combiner == "mean" and feature.mean_divisor == "at_least_one":
        parts.append("divided by at least 1")
    if feature.on_nonpositive_weight == "drop":
        parts.append("ids of weight 0 or less are left out")
    return f"{inputs}: {', '.join(parts)}"


def vocabulary_words(feature: FeatureReport) -> str:
    entry = feature.vocabulary
    if entry is None:
        return "rows"
    kind = "strings" if entry.key_dtype == "string" else "integers"
    return f"{entry.size:,} {kind} in {entry.file}, rows from {entry.first_id}; any other {_other_keys(entry)}"


def signature_words(signature: SignatureReport) -> str:
    device = f" on {signature.device}" if signature.device else ""
    sizes = f", padded to {', '.join(map(str, signature.batch_sizes))} rows" if signature.batch_sizes else ""
    return f"{signature.kind}{device}{sizes}"


def tensor_words(tensor: TensorReport) -> str:
    """Describes a tensor's dtype and shape, with "?" for a size that may vary: "int64 [?, 3]"."""
    if tensor.shape is None:
        shape = "[...]"
    else:
        shape = "[" + ", ".join("?" if size is None else str(size) for size in tensor.shape) + "]"
    return f"{tensor.dtype} {shape}" + (", optional" if tensor.is_optional else "")


def bytes_words(size: int) -> str:
    """Formats a number of bytes with a unit: "120.8 kB"."""
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _combination(feature: LookupFeature) -> str:
    if feature.max_sequence_length is not None:
        return f"sequence of {feature.max_sequence_length}, cut or padded with zeros"
    return feature.combiner or "one id per row"


def _other_keys(entry: VocabularyEntry) -> str:
    if entry.num_oov_buckets:
        return f"falls into one of {entry.num_oov_buckets} rows behind them"
    if entry.oov_id is not None:
        return f"is row {entry.oov_id}"
    return "is dropped" if entry.on_oov == "drop" else "is refused"


def comparison_words(one: BitComparison) -> str:
    both = f" ({one.refused:,} refused by both)" if one.refused else ""
    bits = f"{one.other_bits:,} differ in their last bits" if one.other_bits else "equal to the bit"
    return f"{one.of} against {one.with_}: {one.requests:,} requests{both}, {one.rows:,} rows, {bits}"


def difference_words(difference: DeviceDifference) -> str:
    example = f"; such as {provenance_words(difference.example)}" if difference.example else ""
    # max_absolute is 0 if one lookup refuses a row that the other lookup answers, or if the results differ in shape.
    amount = f" by up to {difference.max_absolute:.3g}" if difference.max_absolute else ""
    return (
        f"{difference.feature} differs from {difference.other} in {difference.rows:,} of {difference.of_rows:,} "
        f"rows{amount}: {difference.reason}{example}"
    )


def statistics_words(entry: TableStatistics) -> str:
    about = "" if entry.distinct_is_exact else "about "
    balance = [
        f"fullest of {len(loads)} partitions ({strategy}) {entry.imbalance(strategy):.2f} x the mean"
        for strategy, loads in entry.partition_loads.items()
        if sum(loads)
    ]
    per_example = f"{entry.mean_ids_per_example:.3g} each, {entry.max_ids_per_example:,} at most"
    bad = [f"{entry.bad_ids:,} ids outside the table"] if entry.bad_ids else []
    return "; ".join(
        [
            f"{entry.sampled_steps:,} of {entry.steps:,} steps",
            f"{entry.examples:,} examples with {entry.ids:,} ids, {per_example}",
            f"{about}{entry.distinct_ids:,} of {entry.table.vocabulary_size:,} rows seen",
            *bad,
            *balance,
        ]
    )


def provenance_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {provenance_words(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(provenance_words, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
