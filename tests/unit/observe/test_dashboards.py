"""Alert rules and the dashboard name metrics that the server has, and the runbook has a page for each alert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
import yaml

from service.observe.logs import dropped_line_metrics
from service.observe.metrics import Metrics
from service.observe.own_metrics import (
    hot_rows_lines,
    neighbor_lines,
    page_lines,
    readiness_lines,
    remote_lines,
    store_lines,
)
from service.observe.request_logs import RequestLogs
from service.remote.core_clusters import CacheCounts, ReadCounts, RemoteCounts, RemoteState
from service.search.neighbor_indexes import IndexName
from service.types import State, VersionStatus
from service.versions.counts import PageCounts
from service.versions.model_config import ModelConfig
from service.versions.servable import LoadedServable
from tests.exposition import Family, read_exposition
from tests.toy_model import write_toy_model
from tests.unit.deltas.conftest import Served
from tests.unit.loading.test_warmup import sampled as sampled_model

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "examples/compose"
RULES = yaml.safe_load((COMPOSE / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((COMPOSE / "grafana/dashboards/embedding-server.json").read_text())
# Prometheus itself makes this metric at each scrape.
OWN = {"up"}
# Words of PromQL that look like the name of a metric.
WORDS = {
    *("sum", "max", "min", "rate", "increase", "deriv", "changes", "histogram_quantile", "by", "bool", "or", "and"),
    *("unless", "offset", "label_values"),
}
# DOCUMENTS: the pages that may name metrics. DESCRIBED: the pages that must describe every metric of the server.
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DESCRIBED = ("metrics.md",)
# Metrics of certificate files, which a server without TLS does not have.
OF_TLS = {
    f"embedding_server_tls_{part}"
    for part in ("certificate_end_timestamp_seconds", "reloads_total", "handshakes_failed_total")
}
# Prometheus' adapter in examples/kubernetes makes this metric for Kubernetes' autoscaler.
OF_ADAPTER = {"embedding_server_requests_under_way"}
OF_AUTH = {"embedding_server_auth_config_reloads_total", "embedding_server_auth_config_is_current"}


def expressions() -> Iterator[tuple[str, str]]:
    """Yields each expression's place and text: those of alerts, of panels, and of the dashboard's variables."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"].replace(", model)", ")")


def metrics_of(expression: str) -> set[str]:
    """Returns the names of the metrics in a PromQL expression."""
    # Remove the labels, ranges and lists of grouping labels from the expression.
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|ignoring) \([^)]*\)|\bon\(\) vector\(0\)", " ", expression)
    return set(re.findall(r"(?<![\w.$])[a-zA-Z_:][\w:]*", bare)) - WORDS


@dataclass
class Counts:
    """The counts of a mirror: bytes, listings, failures and versions."""

    read_bytes: int = 0
    listings: int = 0
    failures: int = 0
    fetched: int = 0


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    """The metrics, by name, of a server whose version has deltas, a request log, tables in a cluster and a store."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy_model(folder / "1")
    served = Served(folder / "1", folder / "journal")
    logs = RequestLogs(tags=[], max_bytes=1)
    logs.configure([ModelConfig("m", "/m")])
    remote = RemoteCounts({("m", 1, "t"): ReadCounts()}, CacheCounts(0, 0, 0))
    more = [lambda: readiness_lines(True, {"m": True}), lambda: store_lines([("m", Counts(), True)])]
    sampled = [LoadedServable(sampled_model(folder), 0)]
    indexes: Any = {IndexName("m", 1, "t", "dot"): SimpleNamespace(recall=1.0, seconds=0.1, nbytes=1)}
    more += [lambda: hot_rows_lines(sampled), lambda: neighbor_lines({"m": 1}, indexes)]
    more.append(lambda: page_lines(PageCounts(1, 1, 0, 0, 0.1, 4096, 8192)))
    more += [
        logs.metric_lines,
        dropped_line_metrics,
        lambda: remote_lines(remote, RemoteState({"c": True}, {"c": 0}, {("m", 1, "t"): (1, {})}, {("m", 1, "t"): 0})),
    ]
    metrics = Metrics(served.registry.loaded, more)
    metrics.version_changed("m", VersionStatus(1, State.AVAILABLE))
    return read_exposition(metrics.render()[0].decode())


@pytest.fixture(scope="module")
def names(families: dict[str, Family]) -> set[str]:
    """Returns the names of all samples that a server can have."""
    found: set[str] = set()
    for name, family in families.items():
        found |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if family.kind == "histogram" else {name}
    return found


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda text: text.split("\n")[0][:60])
def test_every_metric_is_there(names: set[str], where: str, expression: str) -> None:
    named = metrics_of(expression)
    assert named, where
    assert named <= names | OWN, f"{where}: {sorted(named - names - OWN)}"
    if not expression.startswith("label_values("):
        # $__rate_interval is a variable of Grafana, which PromQL does not know.
        promql_parser.parse(expression.replace("$__rate_interval", "5m"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_metric_that_a_document_names_is_there(families: dict[str, Family], names: set[str], path: Path) -> None:
    # A documented name that ends in an underscore stands for all metrics whose names begin so.
    named = set(re.findall(r"\bembedding_server_\w*\w(?!\w|\.\.\.)", path.read_text()))
    known = families.keys() | names | OF_TLS | OF_AUTH | OF_ADAPTER
    missing = {name for name in named if name not in known and not (name.endswith("_") and any_begins(known, name))}
    assert missing == set()


def any_begins(names: Iterable[str], begin: str) -> bool:
    """Says whether any of the names begins with this text."""
    return any(name.startswith(begin) for name in names)


def test_every_metric_of_ours_is_described(families: dict[str, Family]) -> None:
    text = "".join((ROOT / "docs" / name).read_text() for name in DESCRIBED)
    ours = {name for name in families if name.startswith("embedding_server_")} | OF_TLS | OF_AUTH
    assert {name for name in ours if f"`{name}" not in text} == set()


def test_a_metric_that_is_not_there_is_found_out() -> None:
    expression = (
        'sum by (le, model) (rate(a_bucket{code=~"x|y"}[5m])) / rate(b:c[$__rate_interval]) > 1e6 or d == bool 30'
        " unless ignoring (code) e offset 15m"
    )
    assert metrics_of(expression) == {"a_bucket", "b:c", "d", "e"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_a_summary_and_its_page(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"]["summary"]
    path, anchor = rule["annotations"]["runbook_url"].split("#")
    section = (ROOT / path).read_text().partition(f"\n### {rule['alert']}\n")[2].partition("\n#")[0]
    assert anchor == rule["alert"].lower()
    assert [line.split("**")[1] for line in section.splitlines() if line.startswith("- **")] == [
        "Means",
        "Look at",
        "Do",
    ]


def test_the_runbook_has_no_alert_that_there_is_not() -> None:
    sections = re.findall(r"^### (Embedding\w+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(rule["alert"] for rule in RULES)


def test_compose_gives_each_container_the_files_that_it_reads() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for service in ("prometheus", "grafana"):
        for volume in services[service]["volumes"]:
            here, _, _ = volume.partition(":")
            assert not here.startswith("./") or (ROOT / here).exists(), volume
    mounted = {volume.split(":")[1] for volume in services["prometheus"]["volumes"]}
    assert set(yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["rule_files"]) <= mounted
    assert services["grafana"]["profiles"] == ["grafana"]
    provider = yaml.safe_load((COMPOSE / "grafana/provisioning/dashboards/dashboards.yml").read_text())["providers"][0]
    assert provider["options"]["path"] in {volume.split(":")[1] for volume in services["grafana"]["volumes"]}


def test_panels_of_rare_events_show_0_where_none_happened() -> None:
    # A panel of durations has no value without requests, and the metrics of processes and versions always exist; all
    # other panels show 0.
    always = ("histogram_quantile(", "process_", "rate(process_", "embedding_server_version_state")
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            assert expression.endswith(" or on() vector(0)") != expression.startswith(always), panel["title"]


def test_the_dashboard_links_to_the_console() -> None:
    (link,) = DASHBOARD["links"]
    (variable,) = (one for one in DASHBOARD["templating"]["list"] if one["type"] == "textbox")
    assert link["url"] == f"${variable['name']}" and variable["query"].endswith("/console")


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells and max(x for x, _ in own) < 24, panel["title"]
        cells |= own
