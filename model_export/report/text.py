"""Renders a report as plain text for a terminal, at most 100 columns wide, with the findings first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_export.compaction.reduction import report_lines
from model_export.graphs.reduced_table import REDUCED_KEY
from model_export.parity.comparison import BitComparison, DeviceDifference, ParityReport, SignatureParity
from model_export.report.document import (
    ArtifactReport,
    FeatureReport,
    MetaGraphReport,
    SignatureReport,
    TableReport,
    TableStatistics,
    TensorReport,
    first_ids,
)
from model_export.report.page import clip, short
from model_export.statistics.table_health import Histogram, Rows, TableHealth
from service.artifact.manifest import LookupFeature, VocabularyEntry

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
    """Describes the keys or row numbers that clients send for a feature."""
    entry = feature.vocabulary
    if entry is None:
        return "rows"
    kind = "strings" if entry.key_dtype == "string" else "integers"
    return f"{entry.size:,} {kind} in {entry.file}, rows from {entry.first_id}; any other {_other_keys(entry)}"


def signature_words(signature: SignatureReport) -> str:
    """Describes a signature's kind and device: "lookup on cpu", "predict", ..."""
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


WIDTH = 100
_BARS = " ▁▂▃▄▅▆▇█"


def to_text(report: ArtifactReport) -> str:
    sections = (_head, _attention, _tables, _features, _meta_graphs, _parity, _curves, _statistics, _provenance)
    lines = [line for section in sections for line in section(report)]
    return "".join(f"{_printable(line)}\n" for line in lines)


def verification_text(artifact: Path, parity: ParityReport | None, faults: Sequence[str]) -> str:
    """Returns the comparisons of a verification, then one line for each fault, or one line that there is none."""
    lines = [] if parity is None else list(_parity_lines(parity))
    if faults:
        lines += ["", "DISAGREEMENTS", *(f"  ! {fault}" for fault in faults)]
    else:
        # The report's line with the artifact's path is not wrapped, because a script may search for it.
        lines += [f"{artifact}: {agreement_words(parity)}"]
    return "".join(f"{_printable(line)}\n" for line in lines)


def _parity_lines(parity: ParityReport) -> Iterator[str]:
    for title, found in (("", parity.signatures), (" of {serve,tpu}, lowered to a CPU", parity.lowered)):
        for name, entry in found.items():
            yield from _signature_parity(name + title, entry)
    for note in parity.notes:
        yield from _wrap(f"note: {note}", "  ", "    ")


def agreement_words(parity: ParityReport | None) -> str:
    """Returns the summary of a verification without faults; it names the signatures that were not compared."""
    signatures = {} if parity is None else {**parity.signatures, **parity.lowered}
    unchecked = [name for name, entry in signatures.items() if not entry.is_compared]
    partly = [name for name, entry in signatures.items() if entry.is_compared and entry.uncompared]
    if not unchecked and not partly:
        return "files, index, manifest and every signature agree"
    lacking = [f"NOT compared: {', '.join(unchecked)}"] if unchecked else []
    lacking += [f"compared in part only: {', '.join(partly)}"] if partly else []
    return f"files, index, manifest and every answer compared agree; {'; '.join(lacking)}"


def _head(report: ArtifactReport) -> Iterator[str]:
    tags = "; ".join("{" + ",".join(graph.tags) + "}" for graph in report.meta_graphs)
    yield from _wrap(f"{report.folder}  ({len(report.files)} files, {bytes_words(report.nbytes)})", "", "  ")
    lookups = "with" if report.has_manifest else "without"
    yield from _wrap(f"SavedModel with MetaGraphs {tags}, {lookups} a lookup manifest", "", "  ")


def _attention(report: ArtifactReport) -> Iterator[str]:
    if report.disagreements is not None:
        yield from ("", "VERIFICATION")
        for line in report.disagreements:
            yield from _wrap(line, "  ! ", "    ")
        if not report.disagreements:
            yield from _wrap(agreement_words(report.parity), "  ", "    ")
    yield from ("", "NEEDS ATTENTION")
    for finding in report.findings:
        yield from _wrap(finding, "  ! ", "    ")
    if not report.findings:
        yield "  nothing stands out"
    for note in report.notes:
        yield from _wrap(note, "  - ", "    ")


def _tables(report: ArtifactReport) -> Iterator[str]:
    if not report.tables:
        return
    yield from ("", "TABLES" if report.has_manifest else "2-D VARIABLES")
    for table in report.tables:
        shape = f"{table.vocabulary_size:,} x {table.embedding_dim:,} {table.dtype}"
        nbytes = table.nbytes + (table.scale.nbytes if table.scale else 0)
        yield from _wrap(f"{table.name}  {shape}, {bytes_words(nbytes)}", "  ", "    ")
        losses = report.provenance.get(REDUCED_KEY, {}).get(table.name)
        if losses:
            for line in report_lines("differs from the trained table", losses):
                yield from _wrap(line, "    ", "      ")
        if table.features:
            yield from _wrap(f"read by {', '.join(table.features)}", "    ", "      ")
        yield from _table_health(table)


def _table_health(table: TableReport) -> Iterator[str]:
    if table.unread is not None:
        yield from _wrap(f"not read: {table.unread}", "    ", "      ")
    if table.health is None:
        return
    health = table.health
    if health.norms is not None and health.histogram is not None:
        spread = dict(health.norms.percentiles)
        yield (
            f"    row norms  min {short(health.norms.minimum)}  5% {short(spread[5.0])}  "
            f"median {short(health.norms.median)}  mean {short(health.norms.mean)}  95% {short(spread[95.0])}  "
            f"max {short(health.norms.maximum)}"
        )
        yield from _spark(health.histogram)
    yield from _wrap("; ".join(_counts(health)), "    ", "      ")
    if table.projection is not None and table.projection.agreement is not None:
        yield (
            f"    {table.projection.label_title}: {table.projection.agreement:.0%} of rows have a nearest neighbour of "
            f"their own label, chance {table.projection.chance:.0%}"
        )


def _counts(health: TableHealth) -> Iterator[str]:
    groups: tuple[tuple[str, Rows | None], ...] = (
        ("with NaN", health.nan),
        ("with Inf", health.inf),
        ("all zeros (dead)", health.dead),
        ("nearly zero", health.near_zero),
        ("equal to an earlier row", health.duplicates),
    )
    found = [(name, rows) for name, rows in groups if rows is not None and rows.count]
    if not found:
        yield "no NaN, no Inf, no dead, nearly zero or equal rows"
    for name, rows in found:
        yield f"{rows.count:,} {name} ({rows.count / health.rows:.1%}): {clip(first_ids(rows), 60)}"


def _spark(histogram: Histogram) -> Iterator[str]:
    top = max(histogram.counts) or 1
    # The height of a histogram's bar is rounded up, so that a bin with few rows still gets the smallest bar.
    bars = "".join(_BARS[-(-8 * count // top)] for count in histogram.counts)
    beyond = f", {histogram.above:,} rows above" if histogram.above else ""
    yield f"    {short(histogram.edges[0])} |{bars}| {short(histogram.edges[-1])}{beyond}"


def _features(report: ArtifactReport) -> Iterator[str]:
    if report.features:
        yield from ("", "FEATURES")
    for feature in report.features:
        yield from _wrap(f"{feature.name}  table {feature.table}, takes {vocabulary_words(feature)}", "  ", "    ")


def _meta_graphs(report: ArtifactReport) -> Iterator[str]:
    for graph in report.meta_graphs:
        yield from ("", _graph_title(graph))
        if not graph.signatures:
            yield "  none"
        for signature in graph.signatures:
            yield from _wrap(f"{signature.name}  ({signature_words(signature)})", "  ", "    ")
            yield from _tensors("in ", signature.inputs)
            yield from _tensors("out", signature.outputs)
            for name, feature in signature.features.items():
                yield from _wrap(f"{name} = {lookup_words(feature)}", "      ", "        ")


def _graph_title(graph: MetaGraphReport) -> str:
    writer = f", written by TensorFlow {graph.tensorflow_version}" if graph.tensorflow_version else ""
    return f"SIGNATURES OF {{{','.join(graph.tags)}}}{writer}"


def _tensors(direction: str, tensors: Sequence[TensorReport]) -> Iterator[str]:
    text = "; ".join(f"{tensor.name} {tensor_words(tensor)}" for tensor in tensors) or "nothing"
    yield from _wrap(f"{direction} {text}", "    ", "        ")


def _parity(report: ArtifactReport) -> Iterator[str]:
    if report.parity is not None:
        when = "found now" if report.disagreements is not None else "as the exporter found it"
        yield from ("", f"PARITY, {when}")
        yield from _parity_lines(report.parity)


def _signature_parity(name: str, parity: SignatureParity) -> Iterator[str]:
    refused = f", {parity.refused} rightly refused" if parity.refused else ""
    compared = f"{parity.cases} requests: its graph in TensorFlow against the {parity.reference}{refused}"
    only_run = f"{parity.cases} requests only run: " if parity.cases else ""
    what = compared if parity.reference != "nothing" else f"{only_run}no reference answers"
    yield from _wrap(f"{name}  {what}", "  ", "    ")
    for one in parity.comparisons:
        yield from _wrap(comparison_words(one), "    = ", "      ")
    for text in parity.uncompared:
        yield from _wrap(f"not compared: {text}", "    ! ", "      ")
    for output, entry in parity.outputs.items():
        yield (
            f"    {clip(output, 40):40} max error {entry.max_absolute_error:8.1e}  "
            f"relative {entry.max_relative_error:8.1e}" + (f"  {entry.rows:,} rows" if entry.rows else "")
        )
    for difference in parity.differences:
        yield from _wrap(difference_words(difference), "    ~ ", "      ")


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


def _curves(report: ArtifactReport) -> Iterator[str]:
    if report.curves:
        yield from ("", "TRAINING")
    for curve in report.curves:
        (first_x, first), (last_x, last) = curve.points[0], curve.points[-1]
        best_x, best = min(curve.points, key=lambda point: point[1])
        yield from _wrap(
            f"{curve.name}  {first:.4g} at {curve.x_name} {first_x:g} -> {last:.4g} at {last_x:g}; lowest {best:.4g} "
            f"at {best_x:g}",
            "  ",
            "    ",
        )


def _statistics(report: ArtifactReport) -> Iterator[str]:
    if report.statistics:
        yield from ("", "LOOKUPS SAMPLED IN TRAINING")
    for entry in report.statistics:
        yield from _wrap(f"{entry.table}  {statistics_words(entry)}", "  ", "    ")
        hot = ", ".join(f"{row} ({count:,})" for row, count in entry.hot_ids[:10])
        if hot:
            yield from _wrap(f"hot ids {hot}", "    ", "      ")


def statistics_words(entry: TableStatistics) -> str:
    about = "" if entry.distinct_is_exact else "about "
    balance = [
        f"fullest of {len(loads)} partitions ({strategy}) {imbalance:.2f} x the mean"
        for strategy, loads in entry.partitions.items()
        if (imbalance := entry.imbalance(strategy)) is not None
    ]
    bad = [f"{entry.bad_ids:,} ids outside the table"] if entry.bad_ids else []
    return "; ".join(
        [
            f"{entry.sampled_steps:,} of {entry.steps:,} steps",
            f"{entry.examples:,} examples with {entry.ids:,} ids, {entry.mean_ids:.3g} each, {entry.max_ids:,} at most",
            f"{about}{entry.distinct_ids:,} of {entry.rows:,} rows seen",
            *bad,
            *balance,
        ]
    )


def _provenance(report: ArtifactReport) -> Iterator[str]:
    if report.provenance:
        yield from ("", "PROVENANCE")
    for name, value in report.provenance.items():
        yield from _wrap(f"{name}  {provenance_words(value)}", "  ", "    ")


def provenance_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {provenance_words(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(provenance_words, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
