"""TF_CONFIG gives the task of a process; a wrong value gets one message with all its faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_export.distribution.cluster import ClusterTask, number_of_processes
from model_export.errors import ExportError

WORKERS = {"worker": ["a:1", "b:1"]}
SERVERS = {"chief": ["c:1"], "worker": ["a:1"], "ps": ["d:1", "e:1"]}


def parsed(cluster: Any, kind: Any, index: Any, distribution: str) -> ClusterTask:
    """Parses a TF_CONFIG that is made of a cluster, a task type and a task index."""
    text = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    return ClusterTask.parse(text, distribution)


def test_the_chief_is_the_chief_or_worker_0() -> None:
    assert parsed(WORKERS, "worker", 0, "multi_worker").is_chief
    assert not parsed(WORKERS, "worker", 1, "multi_worker").is_chief
    assert parsed({**WORKERS, "chief": ["c:1"]}, "chief", 0, "multi_worker").is_chief
    assert not parsed({**WORKERS, "chief": ["c:1"]}, "worker", 0, "multi_worker").is_chief
    task = parsed(SERVERS, "ps", 1, "parameter_server")
    assert (task.kind, task.index, task.is_chief) == ("ps", 1, False)
    assert task.cluster["ps"] == ("d:1", "e:1")


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "distribution", "faults"),
    [
        (SERVERS, "worker", 0, "multi_worker", ["cluster.ps is not for this distribution"]),
        (WORKERS, "worker", 0, "parameter_server", ["cluster.chief is missing", "cluster.ps is missing"]),
        (WORKERS, "worker", 2, "multi_worker", ["task.index is 2, but cluster.worker lists 2 addresses"]),
        (WORKERS, "worker", "0", "multi_worker", ["task.index is '0'"]),
        (WORKERS, "evaluator", 0, "multi_worker", ["task.type is 'evaluator', expected one of chief, worker"]),
        ({"worker": ["a"]}, "worker", 0, "multi_worker", ["cluster.worker is ['a'], expected a list of HOST:PORT"]),
        ({"worker": ["a:1", "a:1"]}, "worker", 0, "multi_worker", ["cluster names a:1 twice"]),
        ({**SERVERS, "chief": ["c:1", "f:1"]}, "chief", 0, "parameter_server", ["cluster.chief lists 2 addresses"]),
        ({}, "worker", 0, "multi_worker", ["it has no object `cluster`"]),
        ({"worker": []}, "worker", 0, "multi_worker", ["cluster names no process"]),
    ],
)
def test_a_wrong_value_is_refused_with_all_its_faults(
    cluster: Any, kind: Any, index: Any, distribution: str, faults: list[str]
) -> None:
    with pytest.raises(ExportError) as refused:
        parsed(cluster, kind, index, distribution)
    for fault in faults:
        assert fault in str(refused.value)
    assert "for example TF_CONFIG=" in str(refused.value)


@pytest.mark.parametrize(("text", "fault"), [(None, "is not set"), ("", "is not set"), ("{", "is not JSON")])
def test_a_missing_value_is_refused(text: str | None, fault: str) -> None:
    with pytest.raises(ExportError, match=fault):
        ClusterTask.parse(text, "parameter_server")


def test_the_examples_of_the_message_are_right() -> None:
    for distribution in ("multi_worker", "parameter_server"):
        with pytest.raises(ExportError) as refused:
            ClusterTask.parse(None, distribution)
        example = str(refused.value).partition("TF_CONFIG='")[2].removesuffix("'")
        assert ClusterTask.parse(example, distribution).is_chief


def test_processes_are_counted_without_evaluators() -> None:
    assert number_of_processes(None) == number_of_processes("{") == number_of_processes('{"cluster": {}}') == 1
    assert number_of_processes(json.dumps({"cluster": SERVERS})) == 4
    assert number_of_processes(json.dumps({"cluster": {"worker": ["a:1"], "evaluator": ["b:1"]}})) == 1
