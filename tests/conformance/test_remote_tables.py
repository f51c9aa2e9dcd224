"""Features over tables in a cluster send the bytes that features over mapped tables send, on every wire.

`--parity-requests N` draws N requests of each model, each for every wire.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from model_export.remote.push import push
from service.remote.address import StoreAddress
from tests.conformance.conftest import TOY_MODELS
from tests.conformance.random_calls import RandomCalls
from tests.conformance.test_data_planes import _IDS_PER_ROW, Answers
from tests.integration.process import ServerProcess
from tests.valkey_cluster import Cluster, needs_program

pytestmark = needs_program

# Long timeouts: on a busy machine, a slow node must not look like a dead one.
_OPTIONS = "?timeout_ms=60000&node_timeout_ms=30000"


@pytest.fixture(scope="module")
def servers(toy_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """Starts a server with mapped tables, and one with all tables in a cluster."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(tmp_path_factory.mktemp("nodes"), 3))
        names = set()
        for model in TOY_MODELS:
            names |= {one.table for one in push(toy_repository / model / "1", StoreAddress.parse(cluster.address))}
        remote = ";".join(f"{name}={cluster.address}{_OPTIONS}" for name in sorted(names))
        common = {"model_config_file": toy_repository / "models.config", "graph_signatures": "off"}
        started = {
            "mapped": stack.enter_context(ServerProcess(**common)),
            "remote": stack.enter_context(ServerProcess(remote_tables=remote, **common)),
        }
        for server in started.values():
            server.ready()
        yield started


@pytest.mark.parametrize("model", TOY_MODELS)
def test_remote_tables_answer_as_mapped_ones(
    model: str, servers: dict[str, ServerProcess], toy_repository: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(f"remote tables of {model}")
    calls = RandomCalls(model, toy_repository / model / "1", _IDS_PER_ROW)
    answered: Counter[str] = Counter()
    with closing(Answers(servers["mapped"])) as mapped, closing(Answers(servers["remote"])) as remote:
        for _ in range(request.config.getoption("--parity-requests") // 3):
            for call in calls.draw(rng):
                expected, found = mapped.to(call), remote.to(call)
                # Remote tables judge the ids of all features before they read rows, so of two bad ids either is named.
                assert found == expected or all("is out of range" in str(one) for one in (found, expected)), call
                answered[call.wire] += expected[0] == "OK" or str(expected[0]).startswith("(200")
    # For each wire, at least one of the compared answers is not a refusal.
    assert min(answered.values()) > 0, answered


def test_rows_of_a_table_and_counts_are_those_of_mapped_tables(servers: dict[str, ServerProcess]) -> None:
    for body in ({"ids": [3, 0, 3, 4]}, {"ids": []}, {"ids": [1, 5]}, {"ids": [-1]}):
        expected, found = (
            servers[name].http.post("/v1/models/toy/tables/user:rows", json=body) for name in ("mapped", "remote")
        )
        assert (found.status_code, found.content) == (expected.status_code, expected.content)
    texts = [servers[name].http.get("/v1/models/toy/tables").text for name in ("mapped", "remote")]
    assert texts[0] == texts[1]
    metrics = servers["remote"].http.get("/metrics").text
    (read,) = re.findall(r'remote_table_rows_total{model="toy",version="1",table="user"} (.*)', metrics)
    assert float(read) > 0
    assert servers["remote"].http.get("/v1/statusz").status_code == 200
    assert "embedding_server_remote_table" not in servers["mapped"].http.get("/metrics").text
