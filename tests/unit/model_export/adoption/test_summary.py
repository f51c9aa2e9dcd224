"""The summary of adopt says of each signature how it is served, and why it is no lookup."""

from __future__ import annotations

from model_export.adoption.plan import AdoptPlan
from model_export.adoption.summary import Served, summary_lines
from service.artifact.manifest import SignatureEntry


def test_no_line_begins_with_an_empty_reason() -> None:
    entry = SignatureEntry("predict", {}, run="whole")
    # A measurement adds its sentence to a reason that may be empty.
    served = {"score": Served(entry, "; answers would differ"), "other": Served(entry, "x; y"), "plain": Served(entry)}
    assert summary_lines(AdoptPlan({}, {}, {}, {}), served)[4:] == ["score: answers would differ", "other: x; y"]
