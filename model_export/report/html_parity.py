"""The parity of a verification as HTML."""

from __future__ import annotations

from collections.abc import Iterator

from model_export.exporter.parity_report import ParityReport, SignatureParity
from model_export.report.document import ArtifactReport
from model_export.report.page import section, table
from model_export.report.svg import escape
from model_export.report.text import difference_words


def parity_section(report: ArtifactReport) -> str:
    """Returns errors per output, then the rows that two lookups answer differently; "" where nothing was verified."""
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
    found = table(("signature", "what it answers differently, and why"), differences) if differences else ""
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
