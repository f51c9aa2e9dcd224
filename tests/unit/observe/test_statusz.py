"""The status page tells what needs attention, and why."""

from __future__ import annotations

import dataclasses
import mmap
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.configuration.settings import Settings
from service.configuration.settings_reading import shown_settings
from service.observe.attention import CERTIFICATE_S, ReadFiles, attention
from service.observe.history import RecentRequests
from service.observe.metric_text import QUEUE, REQUEST, Times
from service.observe.request_metrics import CoreCounts, Requests
from service.observe.statusz import Statusz, overload, quantile_ms
from service.tables.huge_pages import resident_bytes
from service.versions.registry import Registry
from tests.conftest import serving
from tests.toy_model import write_toy_model


def test_settings_are_shown_and_secrets_are_not() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithSecrets:
        model_name: str = "default"
        port: int = 8500
        admin_token: str = ""
        key_passphrase: str = ""

    shown = shown_settings(WithSecrets(model_name="m", admin_token="hunter2"))  # type: ignore[arg-type]
    assert shown == {
        "model_name": {"value": "m", "is_default": False},
        "port": {"value": 8500, "is_default": True},
        "admin_token": {"value": "(hidden)", "is_default": False},
        "key_passphrase": {"value": "", "is_default": True},
    }
    assert set(shown_settings(Settings())) == {one.name for one in dataclasses.fields(Settings)}


def test_quantiles_lie_within_buckets() -> None:
    times = Times(REQUEST)
    assert quantile_ms(times, 0.5) is None
    for seconds in [0.0004] * 99 + [0.0099]:
        times.add(seconds)
    limits_ms = [limit * 1e3 for limit in REQUEST.limits_s]
    half, most, all_of_them = (quantile_ms(times, share) for share in (0.5, 0.99, 1.0))
    end = min(limit for limit in limits_ms if limit >= 0.4)
    begin = max(limit for limit in limits_ms if limit < 0.4)
    assert most == pytest.approx(end) and half == pytest.approx(begin + (end - begin) * 50 / 99)
    assert all_of_them == min(limit for limit in limits_ms if limit >= 9.9)
    times.add(1e9)
    assert quantile_ms(times, 1.0) == limits_ms[-1]


def test_resident_pages_are_those_that_were_read(tmp_path: Path) -> None:
    path = tmp_path / "table"
    pages = 1024
    path.write_bytes(bytes(pages * mmap.PAGESIZE))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    # Without MADV_RANDOM, a read of one page also maps the pages around it.
    mapped.madvise(mmap.MADV_RANDOM)
    array = np.frombuffer(mapped, np.uint8)
    before = resident_bytes(array)
    if before is None:
        pytest.skip("/proc/self/pagemap is not there")
    assert before == 0
    int(array[:: mmap.PAGESIZE].sum())
    assert resident_bytes(array) == pages * mmap.PAGESIZE
    assert resident_bytes(array[: mmap.PAGESIZE + 1]) == 2 * mmap.PAGESIZE


def test_each_model_with_what_it_holds_and_why_it_was_refused() -> None:
    waits = Times(QUEUE)
    for seconds in [0.004] * 99 + [0.09]:
        waits.add(seconds)
    counts = CoreCounts(
        refused={("a", "wait"): 2, ("a", "bytes"): 1, ("b", "queue"): 3, ("d", "bytes"): 0},
        waits={"c": waits},
        held={"a": 15},
        dropped={"connections": 1},
    )
    found = overload(Settings(max_bytes_in_flight=100, max_queued_requests=3, max_queue_ms=200), counts)
    a, b, c = found["models"]
    assert a == {"model": "a", "in_flight_bytes": 15, "refused": {"bytes": 1, "wait": 2}, "p99_thread_wait_ms": None}
    assert (b["model"], b["in_flight_bytes"], b["refused"]) == ("b", 0, {"queue": 3})
    assert c["model"] == "c" and 4 <= c["p99_thread_wait_ms"] < 90
    assert found["limits"] == {"bytes": 100, "queued": 3, "wait_ms": 200.0}
    assert found["connections_dropped"] == {"connections": 1}


def test_a_fault_of_a_signature_is_told(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["signatures"]["lookup"]["features"]["user"]["output"] = "u"

    write_toy_model(tmp_path / "1", edit_manifest=edit)
    registry = serving(tmp_path)
    document = Statusz(lambda: "1", Settings(), registry, RecentRequests(1.0), Requests).read()
    (version,) = document["models"]["toy"]["versions"]
    reason = "signature 'lookup' has no output 'u', which its manifest names"
    assert version["signature_faults"] == {"lookup": reason}
    assert version["signatures"]["lookup"] == "predict"


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
                "folder": "",
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


M, NEW, OLD, DELTAS = "models.m", "models.m.versions.0", "models.m.versions.1", "models.m.versions.0.deltas"
NODES = [{"node": "a:1", "answers": False}, {"node": "a:2", "answers": True}]
USER = {"model": "m", "version": 2, "table": "user", "problem": "", "refusal": ""}
LOST = "1 blocks are missing, in slots 7"
# Place in the document, what is changed or appended there, and the notice: model, message and alert.
CHANGES: list[tuple[str, Any, tuple[str, str, str]]] = [
    (M, {"folder": "cannot read it"}, ("m", "no new versions are seen: cannot read it", "")),
    (M, {"problem": "none", "folder": "none"}, ("m", "can not answer: none", "EmbeddingModelUnavailable")),
    (M, {"problem": "no version"}, ("m", "can not answer: no version", "EmbeddingModelUnavailable")),
    (OLD, {"code": "DATA_LOSS", "message": "cut"}, ("m", "version 1: DATA_LOSS: cut", "EmbeddingVersionDamaged")),
    (OLD, {"code": "NOT_FOUND", "message": "gone"}, ("m", "version 1: NOT_FOUND: gone", "EmbeddingVersionFailed")),
    (
        NEW,
        {"can_not_run": {"a": "no dtype", "b": "no dtype"}},
        ("m", "version 2: the native core does not run a, b: no dtype", "EmbeddingSignaturesNotRun"),
    ),
    (NEW, {"notice": "a toy"}, ("m", "version 2: a toy", "")),
    (
        NEW,
        {"unproven": ["lookup/film"]},
        ("m", "version 2: a spec is believed that adopt could not prove: lookup/film", ""),
    ),
    (NEW, {"note": "other files lie there"}, ("m", "version 2: other files lie there", "")),
    (
        f"{DELTAS}.refused",
        {"corrupt": 2},
        ("m", "version 2: 2 deltas were refused since it was loaded (corrupt)", "EmbeddingDeltasRefused"),
    ),
    (
        f"{DELTAS}.journal_failures",
        {"full": 3},
        ("m", "version 2: 3 upserts were not put into the journal (full)", "EmbeddingJournalFails"),
    ),
    (DELTAS, {"lag_s": 10.1}, ("m", "version 2: deltas have waited for 10 s", "EmbeddingDeltaLag")),
    (DELTAS, {"missing": 4}, ("m", "version 2: 4 numbers of deltas are missing", "")),
    (
        f"{DELTAS}.journal",
        {"bytes": 90},
        ("m", "version 2: the journal is full to 90 %: fold it into a new version", ""),
    ),
    ("overload.models.1", {"in_flight_bytes": 40}, ("", "90 of 100 bytes are in flight", "EmbeddingInFlightFull")),
    ("server", {"open_files": 900}, ("", "900 of 1000 file descriptors are open", "EmbeddingFileDescriptors")),
    (
        "clusters.0",
        {"problem": "slots 0-99 have no node"},
        ("", "cluster redis://a: slots 0-99 have no node", "EmbeddingClusterUnreachable"),
    ),
    (
        "clusters.0.nodes",
        NODES,
        ("", "cluster redis://a: a:1 not reached; other nodes answer for it", "EmbeddingClusterNodeDown"),
    ),
    (
        "clusters.0.tables",
        [USER | {"problem": LOST}],
        ("m", f"version 2: rows of table user: {LOST}", "EmbeddingRemoteRowsLost"),
    ),
    (
        "clusters.0.tables",
        [USER | {"refusal": "a:1: OOM"}],
        ("m", "version 2: upserts of table user are refused: a:1: OOM", "EmbeddingRemoteUpsertsRefused"),
    ),
    ("stores.0", {"problem": "refused"}, ("m", "object store: refused", "EmbeddingStoreUnlisted")),
    ("request_logs.m", {"is_disabled": True}, ("m", "an error ended the request log", "EmbeddingRequestLogDisabled")),
]


def test_a_server_without_a_model_needs_one() -> None:
    told = ("", "no model is configured, so /readyz answers 503", "")
    assert found(document() | {"models": {}}) == [told]


def test_nothing_is_found_below_the_limits() -> None:
    assert found(document()) == []


@pytest.mark.parametrize(("place", "change", "notice"), CHANGES, ids=[notice[1] for *_, notice in CHANGES])
def test_each_condition_is_found_alone(place: str, change: Any, notice: tuple[str, str, str]) -> None:
    changed: Any = document()
    part = changed
    for key in place.split("."):
        part = part[int(key) if key.isdigit() else key]
    (part.extend if isinstance(part, list) else part.update)(change)
    assert found(changed) == [notice]


def test_a_failed_load_that_leaves_no_version_is_told_once() -> None:
    changed = document()
    model = changed["models"]["m"]
    model["problem"] = "version 2 is END: cut"
    for version, message in zip(model["versions"], ("cut", "cut short"), strict=True):
        version.update(state="END", code="DATA_LOSS", message=message)
    assert found(changed) == [
        ("m", "can not answer: version 2 is END: cut", "EmbeddingModelUnavailable"),
        ("m", "version 1: DATA_LOSS: cut short", "EmbeddingVersionDamaged"),
    ]


def test_files_that_are_read_again_are_looked_at() -> None:
    ends_s = {"grpc": NOW_S - 1, "http": NOW_S + CERTIFICATE_S - 1}
    assert [message for _, message, _ in found(document(), ReadFiles(ends_s, is_auth_current=False))] == [
        "the certificate of the grpc port has expired",
        "the certificate of the http port expires in 14.0 days",
        "the --auth_config file has a fault, so that an older one is in force",
    ]


def test_rules_that_are_named_are_rules_of_prometheus() -> None:
    rules = set(re.findall(r"alert: (\w+)", (ROOT / "examples/compose/alerts.yml").read_text()))
    named = {alert for *_, (_, _, alert) in CHANGES if alert}
    assert named and named <= rules


def test_the_status_page_of_a_server_says_what_needs_attention() -> None:
    registry = Registry(lambda model, status: None)
    registry.add_model("m")
    registry.start("m", 1)
    read = Statusz(lambda: "1", Settings(), registry, RecentRequests(1.0), Requests).read()
    assert [one["alert"] for one in read["attention"]] == ["EmbeddingModelUnavailable"]


def test_the_uptime_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(lambda model, status: None)
    page = Statusz(lambda: "1", Settings(), registry, RecentRequests(1.0), Requests)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s - 3600)
    assert 0 <= page.read()["server"]["uptime_s"] < 3600
