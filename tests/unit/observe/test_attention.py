"""Notices appear on the status page for each condition at its limit and not just below it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.configuration.settings import Settings
from service.engine.registry import Registry
from service.observe.attention import CERTIFICATE_S, ReadFiles, attention
from service.observe.history import RecentRequests
from service.observe.request_metrics import Requests
from service.observe.statusz import Statusz

ROOT = Path(__file__).parents[3]
NOW_S = 1_000_000.0


def document() -> dict[str, Any]:
    """Returns the parts of a status page that the attention list is made of, without a problem in them."""
    deltas = {
        "refused": {},
        "journal_failures": {"full": 0, "held": 0},
        "lag_s": 10.0,
        "missing": 0,
        "journal": {"bytes": 89, "max_bytes": 100},
    }
    held = [{"in_flight_bytes": 50}, {"in_flight_bytes": 39}]
    return {
        "models": {
            "m": {
                "problem": "",
                "versions": [
                    {"version": 2, "state": "AVAILABLE", "code": "OK", "message": "", "note": "", "deltas": deltas},
                    {"version": 1, "state": "END", "code": "OK", "message": "", "note": ""},
                ],
            }
        },
        "overload": {"models": held, "limits": {"bytes": 100}},
        "server": {"open_files": 899, "max_files": 1000},
        "clusters": [{"cluster": "redis://a", "problem": "", "tables": [], "nodes": []}],
        "stores": [{"model": "m", "problem": ""}],
        "request_logs": {"m": {"is_disabled": False}},
    }


def found(document: dict[str, Any], files: ReadFiles | None = None) -> list[tuple[str, str, str]]:
    files = files or ReadFiles({"http": NOW_S + CERTIFICATE_S})
    return [(one["model"], one["message"], one["alert"]) for one in attention(document, files, NOW_S)]


def deltas(document: dict[str, Any]) -> Any:
    return document["models"]["m"]["versions"][0]["deltas"]


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], tuple[str, str, str]]] = [
    (
        lambda one: one["models"]["m"].update(problem="no version"),
        ("m", "can not answer: no version", "EmbeddingModelUnavailable"),
    ),
    (
        lambda one: one["models"]["m"]["versions"][1].update(code="DATA_LOSS", message="cut"),
        ("m", "version 1: DATA_LOSS: cut", "EmbeddingVersionDamaged"),
    ),
    (
        lambda one: one["models"]["m"]["versions"][1].update(code="NOT_FOUND", message="gone"),
        ("m", "version 1: NOT_FOUND: gone", "EmbeddingVersionFailed"),
    ),
    (
        lambda one: one["models"]["m"]["versions"][0].update(can_not_run={"a": "no dtype", "b": "no dtype"}),
        ("m", "version 2: the native core does not run a, b: no dtype", "EmbeddingSignaturesNotRun"),
    ),
    (
        lambda one: one["models"]["m"]["versions"][0].update(notice="a toy"),
        ("m", "version 2: a toy", ""),
    ),
    (
        lambda one: one["models"]["m"]["versions"][0].update(unproven=["lookup/film"]),
        ("m", "version 2: a spec is believed that adopt could not prove: lookup/film", ""),
    ),
    (
        lambda one: one["models"]["m"]["versions"][0].update(note="other files lie there"),
        ("m", "version 2: other files lie there", ""),
    ),
    (
        lambda one: deltas(one)["refused"].update(corrupt=2),
        ("m", "version 2: 2 deltas were refused since it was loaded (corrupt)", "EmbeddingDeltasRefused"),
    ),
    (
        lambda one: deltas(one)["journal_failures"].update(full=3),
        ("m", "version 2: 3 upserts were not put into the journal (full)", "EmbeddingJournalFails"),
    ),
    (
        lambda one: deltas(one).update(lag_s=10.1),
        ("m", "version 2: deltas have waited for 10 s", "EmbeddingDeltaLag"),
    ),
    (lambda one: deltas(one).update(missing=4), ("m", "version 2: 4 numbers of deltas are missing", "")),
    (
        lambda one: deltas(one)["journal"].update(bytes=90),
        ("m", "version 2: the journal is full to 90 %: fold it into a new version", ""),
    ),
    (
        lambda one: one["overload"]["models"][1].update(in_flight_bytes=40),
        ("", "90 of 100 bytes are in flight", "EmbeddingInFlightFull"),
    ),
    (
        lambda one: one["server"].update(open_files=900),
        ("", "900 of 1000 file descriptors are open", "EmbeddingFileDescriptors"),
    ),
    (
        lambda one: one["clusters"][0].update(problem="slots 0-99 have no node"),
        ("", "cluster redis://a: slots 0-99 have no node", "EmbeddingClusterUnreachable"),
    ),
    (
        lambda one: one["clusters"][0]["nodes"].extend(
            [{"node": "a:1", "answers": False}, {"node": "a:2", "answers": True}]
        ),
        ("", "cluster redis://a: a:1 not reached; other nodes answer for it", "EmbeddingClusterNodeDown"),
    ),
    (
        lambda one: one["clusters"][0]["tables"].append(
            {"model": "m", "version": 2, "table": "user", "problem": "1 blocks are missing, in slots 7", "refusal": ""}
        ),
        ("m", "version 2: rows of table user: 1 blocks are missing, in slots 7", "EmbeddingRemoteRowsLost"),
    ),
    (
        lambda one: one["clusters"][0]["tables"].append(
            {"model": "m", "version": 2, "table": "user", "problem": "", "refusal": "a:1: OOM"}
        ),
        ("m", "version 2: upserts of table user are refused: a:1: OOM", "EmbeddingRemoteUpsertsRefused"),
    ),
    (
        lambda one: one["stores"][0].update(problem="refused"),
        ("m", "object store: refused", "EmbeddingStoreUnlisted"),
    ),
    (
        lambda one: one["request_logs"]["m"].update(is_disabled=True),
        ("m", "an error ended the request log", "EmbeddingRequestLogDisabled"),
    ),
]


def test_nothing_is_found_below_the_limits() -> None:
    assert found(document()) == []


@pytest.mark.parametrize(("change", "notice"), CHANGES, ids=[notice[1] for _, notice in CHANGES])
def test_each_condition_is_found_alone(change: Callable[[dict[str, Any]], Any], notice: tuple[str, str, str]) -> None:
    changed = document()
    change(changed)
    assert found(changed) == [notice]


def test_files_that_are_read_again_are_looked_at() -> None:
    ends_s = {"grpc": NOW_S - 1, "http": NOW_S + CERTIFICATE_S - 1}
    assert [message for _, message, _ in found(document(), ReadFiles(ends_s, is_auth_current=False))] == [
        "the certificate of the grpc port has expired",
        "the certificate of the http port expires in 14.0 days",
        "the --auth_config file has a fault, so that an older one is in force",
    ]


def test_rules_that_are_named_are_rules_of_prometheus() -> None:
    rules = set(re.findall(r"alert: (\w+)", (ROOT / "examples/compose/alerts.yml").read_text()))
    named = {alert for _, (_, _, alert) in CHANGES if alert}
    assert named and named <= rules


def test_the_status_page_of_a_server_says_what_needs_attention() -> None:
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    read = Statusz(lambda: "1", Settings(), registry, RecentRequests(1.0), Requests).read()
    assert [one["alert"] for one in read["attention"]] == ["EmbeddingModelUnavailable"]
