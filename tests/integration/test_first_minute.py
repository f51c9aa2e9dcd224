"""A start on a terminal says three things: the settings, the addresses, and each model when it is ready."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.integration.process import ServerProcess, until
from tests.toy_model import write_toy_model


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Writes a folder of two models."""
    write_toy_model(tmp_path / "toys/3")
    write_toy_model(tmp_path / "games/1")
    return tmp_path


def test_a_person_sees_settings_addresses_and_models_and_nothing_else(models: Path) -> None:
    with ServerProcess(str(models), log_format="text", graph_signatures="off") as server:
        # Lines of the settings, of the addresses, and of each model.
        until(lambda: len(server.records) >= 4)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    lines = sorted(record["message"][9:] for record in server.records)
    tables = "tables: tag 4 x 3, user 5 x 2"
    address = r"127\.0\.0\.1:\d+"
    where = r"--host=127\.0\.0\.1 --port=auto --rest_api_port=auto"
    wanted = [
        rf"console http://{address}/console  docs http://{address}/docs  gRPC {address}",
        rf"embedding-server \S+ --models={models} {where} --graph_signatures=off --log_format=text",
        rf"games version 1, ready after \d+\.\d s; {tables}",
        "info    draining signal=SIGTERM",
        "info    stopped",
        rf"toys version 3, ready after \d+\.\d s; {tables}",
    ]
    assert len(lines) == len(wanted), lines
    for line, pattern in zip(lines, wanted, strict=True):
        assert re.fullmatch(pattern, line), line
