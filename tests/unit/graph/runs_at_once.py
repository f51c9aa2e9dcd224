"""Runs all signatures of a SavedModel on many threads at once, where TensorFlow has one thread for operations.

python -m tests.unit.graph.runs_at_once FOLDER whole|cut

A process of its own, because all sessions of a process share the threads that the first one asked for, and because a
run that never ends can not be stopped in another way.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np

from service.graph.flat_graph import flatten
from service.graph.graph_session import CoreSession, DenseGraph
from service.graph.restoring import prepared, saved_tensors
from service.graph.savedmodel import open_savedmodel
from service.types import GraphThreads

SERVE = frozenset({"serve"})
# Threads that run a graph at once, and how often each does.
_THREADS, _RUNS = 16, 30


def main(folder: Path, kind: str) -> None:
    """Returns when all runs have ended; fails if one did. kind: whether the graph is opened whole, or as a cut one."""
    meta_graph, _ = prepared(folder, SERVE)
    signatures = [one for one in meta_graph.signature_def.values() if "x" in one.inputs]
    outputs = [[info.name for info in one.outputs.values()] for one in signatures]
    session: CoreSession
    if kind == "whole":
        backend = open_savedmodel(folder, SERVE, GraphThreads(1))
        session, fetched = backend.session, [backend.fetched(names)[0] for names in outputs]
    else:
        flat = flatten(meta_graph.graph_def, [name for names in outputs for name in names])
        dense = DenseGraph(meta_graph, {})
        dense.add(flat, set(flat.nodes), {})
        session = dense.open(folder, saved_tensors(meta_graph), GraphThreads(1)).session
        # A tensor that is fed can not be fetched.
        given = {one.inputs["x"].name for one in signatures}
        fetched = [[flat.resolved(name) for name in names if flat.resolved(name) not in given] for names in outputs]
    calls = [session.call([one.inputs["x"].name], tensors) for one, tensors in zip(signatures, fetched, strict=True)]
    failures: list[str] = []
    start = threading.Barrier(_THREADS)

    def run(number: int) -> None:
        x = np.array([[1.0, 2.0], [0.5, -3.0], [number, number]], np.float32)
        start.wait()
        try:
            for turn in range(_RUNS):
                calls[(turn + number) % len(calls)](x)
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.close()
    assert not failures, failures


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
