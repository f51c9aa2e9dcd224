"""The text format to families and back."""

from __future__ import annotations

import math

import pytest
from service.workers.exposition import labels, parse, render

from service.metrics.text import labels as write_labels
from tests.unit.metrics.reports import finish, new_metrics

TEXT = """\
# HELP a_total What a counts.
# TYPE a_total counter
a_total{model="x y",code="OK"} 3.0
# TYPE b histogram
b_bucket{le="1"} 2
b_bucket{le="+Inf"} 90071992547409931
b_sum{} 0.1
b_count{} 90071992547409931
# TYPE empty counter
# TYPE g gauge
g 1.5e-07
g{of="none"} NaN
g{of="most"} +Inf
g{of="least"} -Inf
"""


def test_reads_what_it_writes_and_loses_no_digit() -> None:
    found = parse(TEXT)
    assert [(family.name, family.kind) for family in found.values()] == [
        ("a_total", "counter"),
        ("b", "histogram"),
        ("empty", "counter"),
        ("g", "gauge"),
    ]
    assert found["a_total"].about == "What a counts."
    assert found["b"].samples['b_bucket{le="+Inf"}'] == 90071992547409931
    assert math.isnan(found["g"].samples['g{of="none"}'])
    assert render(found.values()) == TEXT


def test_reads_all_that_a_server_writes() -> None:
    metrics = new_metrics()
    finish(metrics)
    finish(metrics, error=ValueError(), model='quote " back \\ line \n end')
    text = metrics.render()[0].decode()
    again = render(parse(text).values())
    assert parse(again) == parse(text)
    # What is before comes from prometheus_client, which writes large numbers in another way.
    ours = "# HELP embedding_server_requests_total"
    assert again.partition(ours)[2] == text.partition(ours)[2]


def test_a_sample_without_a_family_is_refused() -> None:
    with pytest.raises(ValueError, match="no TYPE"):
        parse("a 1\n")


@pytest.mark.parametrize("value", ["", "plain", 'a"b', "a\\b", "a\nb", 'x="y",z="', "}", "\\"], ids=repr)
def test_labels_are_read_as_they_were_written(value: str) -> None:
    named = {"model": value, "version": "3"}
    assert labels(f"a_total{{{write_labels(named)}}}") == named
