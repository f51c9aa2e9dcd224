"""The report shows the parity object of a manifest in this format, in the first format, and without one."""

from __future__ import annotations

import json
import math

from model_export.parity.comparison import DeviceDifference, OutputParity, ParityReport, SignatureParity
from model_export.report.build import parity_from_json


def test_what_the_exporter_writes_comes_back() -> None:
    difference = DeviceDifference("tags", "lookup", "cut at 3 ids", 2, 9, 0.5, {"ids": [1, 2, 3, 1]})
    signature = SignatureParity("lookup", "oracle", 7, {"tags": OutputParity(9, 1e-7, 2e-7)}, 3, (difference,))
    predict = SignatureParity("predict", "recorded answers", 2, {"score": OutputParity(4, 0.0, 0.0)})
    report = ParityReport({"lookup": signature, "serving_default": predict})
    assert parity_from_json(json.loads(json.dumps(report.manifest_json()))) == report


def test_format_1_has_one_figure_per_signature() -> None:
    found = parity_from_json({"lookup": {"cases": 8, "max_absolute_error": 1e-8, "max_relative_error": 2e-7}})
    assert found is not None
    assert found.signatures["lookup"].cases == 8
    assert dict(found.signatures["lookup"].outputs) == {"(all outputs)": OutputParity(0, 1e-8, 2e-7)}


def test_what_is_not_understood_is_left_out() -> None:
    assert parity_from_json({}) is None
    assert parity_from_json({"note": "none was made"}) is None
    found = parity_from_json({"s": {"cases": "many", "outputs": {"o": 3}, "differences": [4], "reference": "luck"}})
    assert found is not None
    entry = found.signatures["s"]
    assert (entry.cases, entry.reference, entry.differences) == (0, "oracle", ())
    assert math.isnan(entry.outputs["o"].max_absolute_error)
