"""Python and the native core tell each other counts, samples, pages and names; the core is chosen where it is."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from service.configuration.settings import Settings, StartError
from service.control import request_context
from service.control.request_context import Finished, Subject
from service.core.choice import with_data_plane
from service.core.forwarded import NO_FORWARDING, Forwarding
from service.core.statistics import NativeStatistics
from service.observe.metric_text import QUEUE, REQUEST
from service.observe.own_metrics import page_lines
from service.observe.request_metrics import RequestCounter
from service.versions.counts import PageCounts

SUBJECT = Subject("grpc", "Predict", "m", 1, "lookup")


class FakeCore:
    """A stand-in for the native core that reports numbers which a test sets."""

    def __init__(self) -> None:
        self.subjects: list[dict[str, Any]] = []
        self.events: dict[str, list[Any]] = {
            name: [] for name in ("refused", "failed", "cut", "flooded", "handshakes_failed", "waited", "held")
        }
        self.slow: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.retired_failures: list[dict[str, Any]] = []
        self.examples: list[int] = []

    def count(self, requests: int) -> None:
        """Sets the core's total to this many requests, with two rows and a quarter of a second each."""
        counts = [0] * (len(REQUEST.limits_s) + 1)
        counts[5] = requests
        numbers = {"rows": 2 * requests, "seconds": requests / 4, "counts": counts}
        runs = {"run_seconds": requests / 8, "run_counts": counts}
        self.subjects = [{**SUBJECT._asdict(), "kind": "lookup", **numbers, **runs, "example_counts": self.examples}]

    def statistics(self) -> str:
        """Returns all numbers, as edge/snapshot.rs writes them."""
        found = {"subjects": self.subjects, "slow": self.slow, "failures": self.failures, "queued": 3}
        return json.dumps(found | self.events)

    def retire(self, model: str, version: int) -> str:
        """Removes all numbers of requests, and returns them."""
        gone, self.subjects = self.subjects, []
        return json.dumps({"subjects": gone, "failed": self.retired_failures})


class Seen:
    """Keeps all that NativeStatistics tells it."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def was_slow(self, subject: Subject, seconds: float, run_seconds: float, rows: int) -> None:
        """Stands for the method of service.observe.history; keeps the request."""
        self.told.append(("slow", subject.signature, rows, request_context.client.get()))

    def noted(self, subject: Subject, code: str, message: str) -> None:
        """Stands for the method of service.observe.history; keeps the refusal."""
        self.told.append(("failed", subject.model, code, message, request_context.client.get()))


def joined() -> tuple[FakeCore, RequestCounter, Seen]:
    """Returns a core, a counter that also reads the core's numbers, and a record of slow requests and other events."""
    core, counter, seen = FakeCore(), RequestCounter(), Seen()
    counter.core = NativeStatistics(
        core,  # type: ignore[arg-type]
        slow=seen.was_slow,
        failed=seen.noted,
        now=lambda: 100.0,
    )
    return core, counter, seen


def test_requests_of_the_core_are_counted_once_however_often_they_are_read() -> None:
    core, counter, _ = joined()
    core.count(3)
    assert counter.read()[0].successes[SUBJECT].count == 3
    core.count(4)
    found = counter.read()[0].successes[SUBJECT]
    assert (found.count, found.rows, found.times.seconds, found.run_times.seconds) == (4, 8, 1.0, 0.5)
    assert found.kind == "lookup"


def test_they_are_added_to_those_that_python_answered() -> None:
    core, counter, _ = joined()
    counter.finished(Finished(SUBJECT, None, seconds=0.5, run_seconds=0.25, rows=1))
    core.count(2)
    assert counter.read()[0].successes[SUBJECT].count == 3


def test_a_version_that_is_gone_stays_in_the_sums_of_all_time() -> None:
    core, counter, _ = joined()
    core.count(3)
    counter.retire("m", 1)
    now, ever = counter.read()
    assert now.successes == {}
    assert ever.successes[SUBJECT._replace(version=None, signature="lookup")].count == 3
    # Version 1 is served again: its own counts begin at 0, the counts of its model since the start go on.
    core.count(1)
    now, ever = counter.read()
    assert now.successes[SUBJECT].count == 1
    assert ever.successes[SUBJECT._replace(version=None, signature="lookup")].count == 4


def test_a_core_that_ends_leaves_its_counts() -> None:
    core, counter, _ = joined()
    core.count(2)
    counter.detach_core()
    core.count(9)
    assert counter.read()[0].successes[SUBJECT].count == 2
    counter.retire("m", 1)
    now, ever = counter.read()
    assert not now.successes
    assert ever.successes[SUBJECT._replace(version=None, signature="lookup")].count == 2


def test_refusals_and_slow_requests_are_told_once_and_connections_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core, counter, seen = joined()
    waits = [0] * (len(QUEUE.limits_s) + 1)
    waits[1] = 2
    core.events = {
        "refused": [("m", "queue", 2), ("", "connections", 1), ("", "idle", 0)],
        "failed": [],
        "waited": [{"model": "m", "seconds": 0.5, "counts": waits}],
        "cut": [("grpc", 1), ("http", 1)],
        "flooded": [("ping", 1), ("malformed", 1), ("data", 0)],
        "handshakes_failed": [("grpc", 2)],
        "held": [("m", 5000), ("", 7)],
    }
    named = {**SUBJECT._asdict(), "request_id": "abc", "client": "ranker"}
    named |= {"seconds": 2.0, "run_seconds": 1.0, "rows": 7}
    core.slow = [{"at_s": 99.0, **named}, {"at_s": 101.0, **named}]
    counter.read()
    assert counter.core is not None
    counts = counter.core.collect()
    assert seen.told == [("slow", "lookup", 7, "ranker")]
    (record,) = caplog.records
    assert (record.model, record.refused_for) == ("m", "queue")  # type: ignore[attr-defined]
    assert counts.refused == {("m", "queue"): 2}
    assert counts.dropped == {"connections": 1, "handshake": 2, "stalled": 2, "flood_ping": 1, "malformed": 1}
    assert (counts.held, counts.handshakes_failed) == ({"m": 5000, "": 7}, {"grpc": 2})
    assert (counts.waits["m"].counts, counts.waits["m"].seconds) == (waits, 0.5)


def test_requests_that_the_core_refused_are_counted_once_and_told_once() -> None:
    core, counter, seen = joined()
    failed = {**SUBJECT._asdict(), "code": "INVALID_ARGUMENT"}
    for count in (2, 2, 5):
        core.events["failed"] = [failed | {"count": count}]
        told = {"at_s": 100.0 + count, "request_id": "a", "client": "10.0.0.5", "message": "bad"}
        core.failures = [failed | told]
        assert counter.read()[0].failures == {(SUBJECT, "INVALID_ARGUMENT"): count}
    assert seen.told == [("failed", "m", "INVALID_ARGUMENT", "bad", "10.0.0.5")] * 2


def test_refusals_of_a_version_that_is_gone_stay_in_the_sums_of_all_time() -> None:
    core, counter, _ = joined()
    failed = {**SUBJECT._asdict(), "code": "INVALID_ARGUMENT"}
    core.events["failed"] = [failed | {"count": 2}]
    counter.read()
    core.events["failed"], core.retired_failures = [], [failed | {"count": 3}]
    counter.retire("m", 1)
    now, ever = counter.read()
    assert now.failures == {}
    assert ever.failures == {(SUBJECT._replace(version=None, signature=""), "INVALID_ARGUMENT"): 3}
    # The version is served again: the core counts its refusals from 0.
    core.events["failed"] = [failed | {"count": 1}]
    assert counter.read()[0].failures == {(SUBJECT, "INVALID_ARGUMENT"): 1}


def test_the_status_page_shows_the_rest() -> None:
    core, counter, _ = joined()
    assert isinstance(counter.core, NativeStatistics)
    core.events["refused"] = [("", "bytes", 1), ("m", "bytes", 2)]
    counter.read()
    assert counter.core.read() == {
        "queued": 3,
        "refused": {"bytes": 3},
        "cut": {},
        "flooded": {},
        "handshakes_failed": {},
    }


def test_numbers_of_examples_are_added_for_methods_that_have_them() -> None:
    core, counter, _ = joined()
    core.examples = [0, 2, 1, *[0] * 13]
    core.count(3)
    first = counter.read()[0].successes[SUBJECT].examples
    core.examples = [0, 2, 4, *[0] * 13]
    core.count(6)
    second = counter.read()[0].successes[SUBJECT].examples
    assert first is not None and second is not None
    assert (first.counts[:3], first.total, second.counts[:3], second.total) == ([0, 2, 1], 6, [0, 2, 4], 12)


sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
ratio = sampling.TraceIdRatioBased


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [
        (sampling.ALWAYS_ON, (1, 1, 1)),
        (sampling.ALWAYS_OFF, (0, 0, 0)),
        (ratio(1e-05), (1e-05, 1e-05, 1e-05)),
        (sampling.DEFAULT_ON, (1, 1, 0)),
        (sampling.DEFAULT_OFF, (0, 1, 0)),
        (sampling.ParentBasedTraceIdRatio(0.01), (0.01, 1, 0)),
        (sampling.ParentBased(ratio(0.5), remote_parent_not_sampled=ratio(0.25)), (0.5, 1, 0.25)),
        (sampling.ParentBased(sampling.DEFAULT_OFF), (1, 1, 1)),
        (sampling.AlwaysRecordSampler(sampling.ALWAYS_OFF), (1, 1, 1)),
    ],
    ids=lambda value: getattr(value, "get_description", str)(),
)
def test_shares_are_the_samplers(sampler: object, shares: tuple[float, ...]) -> None:
    from service.core.edge import trace_shares

    described = sampler.get_description()  # type: ignore[attr-defined]
    assert tuple(trace_shares(described).values()) == shares


def test_a_trace_has_the_id_that_the_core_drew() -> None:
    from service.observe.otel import DrawnIds

    ids = DrawnIds()
    ids.trace_id.set(7)
    assert ids.generate_trace_id() == 7
    ids.trace_id.set(0)
    assert ids.generate_trace_id() not in (0, 7, ids.generate_trace_id())


SEAL = "secret"
HEADERS = [
    (b"x-embedding-server-names", b"CN%3Aranker%20%C3%A9 DNS%3Aa%2Eexample"),
    (b"x-embedding-server-client", b"10.0.0.5"),
    (b"host", b"localhost"),
]


def test_the_core_is_believed() -> None:
    forwarded = [*HEADERS, (b"x-embedding-server-seal", b"secret")]
    assert Forwarding(SEAL).names(forwarded) == {"CN:ranker é", "DNS:a.example"}
    assert Forwarding(SEAL).client(forwarded) == "10.0.0.5"
    assert Forwarding(SEAL).names([(b"x-embedding-server-seal", b"secret")]) == frozenset()


def test_others_are_not() -> None:
    for seal in (b"", b"secre", b"secrets", b"\xff"):
        forged = [*HEADERS, (b"x-embedding-server-seal", seal)]
        for reader in (Forwarding(SEAL), NO_FORWARDING):
            assert not reader.names(forged) and not reader.client(forged)
    assert not Forwarding(SEAL).names(HEADERS)


def chosen(*, is_installed: bool = True, **given: Any) -> Settings:
    """Returns the settings with which a server starts, given whether the core is installed."""
    return with_data_plane(Settings(model_base_path="m", **given), lambda: is_installed)


def test_the_core_is_taken_where_it_is_installed(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen().data_plane == "core"
    assert chosen(data_plane="core").data_plane == "core"
    assert not caplog.records


def test_channel_arguments_choose_no_other_server_and_those_without_effect_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "grpc.max_receive_message_length=2000,grpc.lb_policy_name=x,grpc.keepalive_time_ms=1"
    assert chosen(grpc_channel_arguments=text).data_plane == "core"
    (record,) = caplog.records
    assert record.arguments == ["grpc.lb_policy_name", "grpc.keepalive_time_ms"]  # type: ignore[attr-defined]


def test_the_reference_says_that_it_is_slower_and_how_to_get_the_core(caplog: pytest.LogCaptureFixture) -> None:
    for given in ({"is_installed": False}, {"data_plane": "reference"}):
        caplog.clear()
        assert chosen(**given).data_plane == "reference"
        (record,) = caplog.records
        assert "many times slower" in record.message
        assert "pip install" in record.reason  # type: ignore[attr-defined]


def test_a_core_that_is_asked_for_and_missing_stops_the_start() -> None:
    with pytest.raises(StartError, match="native core is not installed"):
        chosen(is_installed=False, data_plane="core")


def test_a_pager_without_tables_has_read_nothing() -> None:
    pytest.importorskip("service._native")
    from service.core.statistics import Pages

    counts = Pages(10 << 20).counts()
    assert counts == PageCounts(rows=0, reads=0, drops=0, losses=0, seconds=0.0, bytes=0, max_bytes=10 << 20)
    # If no table is paged, the server does not show the metrics of pages.
    assert page_lines(counts) == []


def test_metrics_have_all_counts() -> None:
    lines = page_lines(PageCounts(1, 2, 3, 4, 0.5, 6, 7))
    values = [line.removeprefix("embedding_server_paged_") for line in lines if not line.startswith("#")]
    assert values == [
        "cold_rows_total{} 1.0",
        "reads_total{} 2.0",
        "drops_total{} 3.0",
        "losses_total{} 4.0",
        "read_seconds_total{} 0.5",
        "resident_bytes{} 6.0",
        "max_bytes{} 7.0",
    ]


ROOT = Path(__file__).parents[3]
NOTICES = "native/THIRD-PARTY-NOTICES.txt"


def test_each_dependency_of_the_core_is_named_by_its_version() -> None:
    native = ROOT / "native"
    names = tomllib.loads((native / "Cargo.toml").read_text())["dependencies"].keys()
    locked = tomllib.loads((native / "Cargo.lock").read_text())["package"]
    lines = (ROOT / NOTICES).read_text().splitlines()
    for crate in locked:
        if crate["name"] in names and "source" in crate:
            assert any(line.startswith(f"{crate['name']} {crate['version']}, ") for line in lines), crate


def test_they_are_in_the_wheel_and_the_images() -> None:
    assert NOTICES in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    assert f"COPY {NOTICES} " in (ROOT / "Dockerfile").read_text()
    assert f"!{NOTICES}" in (ROOT / ".dockerignore").read_text().splitlines()
