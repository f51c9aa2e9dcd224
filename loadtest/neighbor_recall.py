"""Measures the recall of nearest-row searches beside the truth, for six kinds of queries on one table.

  python -m loadtest.neighbor_recall film.npy --queries user.npy --metric cosine

A server with an index is asked for ten neighbours, first without and then with "exact": true. Each kind of query is
asked of a server of its own, as its only kind of traffic; then one server gets the kinds of vectors in turn.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.live_server import ROOT, LiveServer

_K = 10
_EXCLUDED = 50
# An index is tuned for vectors when 64 of them came, and again at 128 and 256.
_WARM = 300
_MEASURED = 200
_PATIENCE_S = 600


@dataclass(frozen=True, slots=True)
class Found:
    """The result for one kind of queries.

    told: what answers say as "recall"; None: they have no such field. true: the measured share of the ten nearest rows.
    least: of a single query. scanned: the share of the table's rows that were compared. cpu_ms, exact_cpu_ms: processor
    time of the server for one query with the index, and with all rows. speed, exact_speed: queries a second.
    """

    told: float | None
    true: float
    least: float
    scanned: float
    cpu_ms: float
    exact_cpu_ms: float
    speed: float
    exact_speed: float


def queries_of(rows: np.ndarray, others: np.ndarray | None) -> dict[str, list[dict[str, Any]]]:
    """Returns request bodies by kind of query, enough to warm the index and to measure it."""
    random = np.random.default_rng(7)
    count, num_rows = _WARM + _MEASURED, len(rows)

    def some() -> np.ndarray:
        return rows[random.integers(0, num_rows, count)]

    noise = random.normal(size=(count, rows.shape[1])) * rows.std(axis=0)
    vectors = {
        "rows with noise": some() + 0.5 * noise,
        "midpoints of two rows": (some() + some()) / 2,
        "a - b + c of three rows": some() - some() + some(),
        "random": random.normal(size=noise.shape) * rows.std(axis=0),
    }
    if others is not None:
        vectors["rows of the other table"] = others[random.integers(0, len(others), count)]
        del vectors["a - b + c of three rows"]
    ids = random.integers(0, num_rows, count).tolist()
    bodies = {"rows": [{"ids": [one]} for one in ids]}
    bodies["rows, 50 nearest excluded"] = [{"ids": [one]} for one in ids]
    return bodies | {
        kind: [{"vectors": [one]} for one in found.astype(np.float32).tolist()] for kind, found in vectors.items()
    }


class Searches:
    """Searches of one table on one server, over one connection."""

    def __init__(self, server: LiveServer, metric: str) -> None:
        self._server = server
        self._metric = metric
        self._connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=120)

    def ask(self, body: Mapping[str, Any], **more: object) -> dict[str, Any]:
        """Returns the answer to one search."""
        text = json.dumps({"k": _K, "metric": self._metric, **body, **more})
        self._connection.request("POST", "/v1/models/t/tables/t:neighbors", text, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        found = answer.read()
        assert answer.status == 200, found
        return dict(json.loads(found))

    def ask_all(
        self, bodies: Sequence[Mapping[str, Any]], **more: object
    ) -> tuple[list[dict[str, Any]], float, float, float]:
        """Returns the answers, and for one search: seconds, seconds of the server's processor, and compared rows."""
        began_s, cpu_s, scanned = time.monotonic(), self._cpu_s(), self._scanned()
        answers = [self.ask(body, **more) for body in bodies]
        spent = time.monotonic() - began_s, self._cpu_s() - cpu_s, self._scanned() - scanned
        return answers, *(one / len(bodies) for one in spent)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _scanned(self) -> float:
        self._connection.request("GET", "/metrics")
        text = self._connection.getresponse().read().decode()
        name = "embedding_server_neighbor_rows_scanned_total"
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))

    def wait_for_index(self) -> None:
        """Waits until the table's index is built or read; raises SystemExit if it would not be used."""
        self.ask({"ids": [0]})
        record = self._record("index of nearest rows is", "table is searched without an index")
        if "recall" not in record:
            raise SystemExit(f"{record['message']}: all answers are exact")

    def wait_until_tuned(self, num_vectors: int) -> None:
        """Waits until the index is tuned for the sampled vectors."""
        self._record("index of nearest rows is tuned for vectors", vectors=num_vectors)

    def _record(self, *begins: str, **fields: object) -> Mapping[str, Any]:
        end_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s:
            for record in self._server.records:
                if record["message"].startswith(begins) and fields.items() <= record.items():
                    return record
            time.sleep(0.1)
        raise TimeoutError(f"no log line {begins} {fields}")


def measured(searches: Searches, bodies: Sequence[Mapping[str, Any]], num_rows: int) -> Found:
    """Asks each search with the index and with all rows, and compares the answers."""
    found, seconds, cpu_s, scanned = searches.ask_all(bodies)
    exact, exact_seconds, exact_cpu_s, _ = searches.ask_all(bodies, exact=True)
    hits = [
        len(set(ours["ids"][0]) & set(true["ids"][0])) / len(true["ids"][0])
        for ours, true in zip(found, exact, strict=True)
    ]
    told = [one["recall"] for one in found if "recall" in one]
    return Found(
        float(np.mean(told)) if told else None,
        float(np.mean(hits)),
        min(hits),
        scanned / num_rows,
        1e3 * cpu_s,
        1e3 * exact_cpu_s,
        1 / seconds,
        1 / exact_seconds,
    )


def run(table: Path, others: Path | None, metric: str, chosen: Collection[str] = ()) -> Iterator[tuple[str, Found]]:
    """Yields the result of each kind of query alone, then of each kind of vectors on a server that gets them all.

    Args:
      chosen: only these kinds; without one, all.
    """
    rows = np.load(table).astype(np.float32)
    bodies = queries_of(rows, None if others is None else np.load(others))
    bodies = {kind: asked for kind, asked in bodies.items() if not chosen or kind in chosen}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "model_export", "import", f"--out={folder}/t", f"--table=t={table}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        flags = ["--model_name=t", f"--model_base_path={folder}/t", f"--neighbors_index_dir={folder}/kept"]
        flags += ["--neighbors_index_rows=1000"]

        @contextmanager
        def searches() -> Iterator[Searches]:
            with LiveServer(*flags) as server:
                found = Searches(server.ready(), metric)
                found.wait_for_index()
                yield found
                found.close()

        for kind, asked in bodies.items():
            with searches() as own:
                if kind.endswith("excluded"):
                    nearest = [own.ask(body, k=_EXCLUDED)["ids"][0] for body in asked]
                    asked = [body | {"filter": {"exclude_ids": ids}} for body, ids in zip(asked, nearest, strict=True)]
                own.ask_all(asked[:_WARM])
                if "vectors" in asked[0]:
                    own.wait_until_tuned(256)
                yield kind, measured(own, asked[_WARM:], len(rows))
        kinds = {kind: asked for kind, asked in bodies.items() if "vectors" in asked[0]}
        with searches() as all_kinds:
            all_kinds.ask_all([body for some in zip(*kinds.values(), strict=True) for body in some][:_WARM])
            all_kinds.wait_until_tuned(256)
            for kind, asked in kinds.items():
                yield f"{kind}, among all kinds", measured(all_kinds, asked[_WARM:][:50], len(rows))


def main() -> None:
    """Prints a table, a line for each kind of query."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path, help="an .npy file of [V, D] numbers")
    parser.add_argument("--queries", type=Path, help="an .npy file of another table, whose rows are queries too")
    parser.add_argument("--metric", default="cosine", choices=("cosine", "dot", "l2"))
    options = parser.parse_args()
    sys.stdout.write("| queries | told | true | worst query | rows compared | CPU ms | exact | q/s | exact |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|---|\n")
    for kind, found in run(options.table, options.queries, options.metric):
        told = "" if found.told is None else f"{found.told:.3f}"
        sys.stdout.write(
            f"| {kind} | {told} | {found.true:.3f} | {found.least:.1f} | {100 * found.scanned:.1f} % "
            f"| {found.cpu_ms:.2f} | {found.exact_cpu_ms:.2f} | {found.speed:.0f} | {found.exact_speed:.0f} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
