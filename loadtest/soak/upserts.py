"""Changes rows of a table under load, and reads each changed row until all answers show the change."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any

import numpy as np

from loadtest.bench.workloads import MODEL, WORKLOADS, Data
from loadtest.soak.tally import Tally

_TABLE, _FEATURE = "user", "user"
_PATIENCE_S = 30.0
# Number of consecutive answers, each over a new connection, that must show an upserted row before the row counts as
# seen.
_LOOKS = 4
_KIND = "upsert"


def free_row(data: Data) -> int:
    """Returns a row of the table that no other request of the soak test reads."""
    used = {int(i) for name in WORKLOADS for inputs in data.requests(name) for i in inputs.get(_FEATURE, [])}
    return next(row for row in range(data.sizes.tables[_TABLE][0]) if row not in used)


def run(admin: str, address: str, data: Data, tally: Tally, stop: threading.Event, *, interval_s: float) -> None:
    """Changes one row every interval_s seconds, until `stop` is set.

    Args:
      admin, address: host:port of the admin listener and of the HTTP listener.
    """
    row, dim = free_row(data), data.sizes.tables[_TABLE][1]
    number = 0
    while not stop.wait(interval_s):
        number += 1
        wanted = np.full(dim, number, np.float32).tolist()
        try:
            _post(admin, f"/v1/models/{MODEL}/tables/{_TABLE}:upsert", {"ids": [row], "rows": [wanted]})
            outcome = _seen(address, row, wanted, stop)
        except Exception as error:
            tally.failed(_KIND, f"{type(error).__name__} {error}")
            continue
        if outcome:
            tally.done(_KIND, outcome, None, 0)
        elif not stop.is_set():
            tally.failed(_KIND, f"not seen after {_PATIENCE_S:.0f} s")


def _seen(address: str, row: int, wanted: list[float], stop: threading.Event) -> str:
    """Reads the row until it has the written value; returns the outcome in words, "" if it never comes in time."""
    end_s = time.monotonic() + _PATIENCE_S
    in_a_row = 0
    versions = _versions(address)
    while not stop.is_set() and time.monotonic() < end_s:
        answer = _post(address, f"/v1/models/{MODEL}/tables/{_TABLE}:rows", {"ids": [row]})
        in_a_row = in_a_row + 1 if answer["rows"][0] == wanted else 0
        if in_a_row == _LOOKS:
            return "seen"
        if not in_a_row:
            if _versions(address) != versions:
                # The new version was copied from files that lack the upsert, so it does not have the changed row.
                return "overtaken by a version"
            time.sleep(0.05)
    return ""


def _versions(address: str) -> set[str]:
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
    try:
        connection.request("GET", f"/v1/models/{MODEL}")
        statuses = json.loads(connection.getresponse().read())["model_version_status"]
    finally:
        connection.close()
    return {status["version"] for status in statuses if status["state"] == "AVAILABLE"}


def _post(address: str, path: str, document: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"HTTP {response.status}: {body[:200]!r}")
    return json.loads(body)
