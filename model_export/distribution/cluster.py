"""Reads TF_CONFIG: the addresses of the processes that train together, and the task of this process among them.

>>> text = '{"cluster": {"worker": ["127.0.0.1:2001", "127.0.0.1:2002"]}, "task": {"type": "worker", "index": 1}}'
>>> ClusterTask.parse(text, "multi_worker").is_chief
False
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from model_export.errors import ExportError

Distribution = Literal["none", "multi_worker", "parameter_server"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

# For each distribution: the kinds of its tasks, and the smallest and largest number of processes of each kind.
_TASKS: Mapping[str, Mapping[str, tuple[int, int | None]]] = {
    "multi_worker": {"chief": (0, 1), "worker": (0, None)},
    "parameter_server": {"chief": (1, 1), "worker": (1, None), "ps": (1, None)},
}
_EXAMPLES = {
    "multi_worker": '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": '
    "0}}",
    "parameter_server": '{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], "ps": ["10.0.0.3:2222"'
    ']}, "task": {"type": "chief", "index": 0}}',
}


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """The addresses of a cluster's processes, and the task of this process among them.

    cluster: kind of task -> addresses HOST:PORT of its processes. kind, index: the task of this process.
    """

    cluster: Mapping[str, tuple[str, ...]]
    kind: str
    index: int

    @staticmethod
    def parse(text: str | None, distribution: str, asker: str | None = None) -> ClusterTask:
        """Reads the value of TF_CONFIG for "multi_worker" or "parameter_server".

        Raises:
          ExportError: the value is missing or does not fit the distribution; the message lists all faults and shows an
            example.
        """
        if not text:
            raise ExportError(_message(distribution, asker, ["the environment variable is not set"]))
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ExportError(_message(distribution, asker, [f"it is not JSON: {error}"])) from error
        cluster, faults = _cluster(data, distribution)
        kind, index = _task(data)
        if kind not in _TASKS[distribution]:
            faults.append(f"task.type is {kind!r}, expected one of {', '.join(_TASKS[distribution])}")
        elif type(index) is not int or not 0 <= index < len(cluster.get(kind, ())):
            faults.append(f"task.index is {index!r}, but cluster.{kind} lists {len(cluster.get(kind, ()))} addresses")
        if faults:
            raise ExportError(_message(distribution, asker, faults))
        return ClusterTask(cluster, kind, index)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints: the chief, or worker 0 of a cluster without a chief."""
        return self.kind == "chief" or ("chief" not in self.cluster and self.kind == "worker" and self.index == 0)

    @property
    def number_of_workers(self) -> int:
        """Number of processes that compute gradients if all tasks train: the chief and the workers."""
        return len(self.cluster.get("chief", ())) + len(self.cluster.get("worker", ()))

    @property
    def number_among_workers(self) -> int:
        """Number of this process among the processes that compute gradients: 0 is the chief, if there is one."""
        return self.index + (len(self.cluster.get("chief", ())) if self.kind == "worker" else 0)


def lists_parameter_servers(text: str | None) -> bool:
    data = _read(text)
    return bool(_tasks(data).get("ps")) and _task(data)[0] != "evaluator"


def number_of_processes(text: str | None) -> int:
    """Returns the number of processes that a value of TF_CONFIG lists, without evaluators; 1 if it lists none."""
    return max(1, sum(len(addresses) for kind, addresses in _tasks(_read(text)).items() if kind != "evaluator"))


def _read(text: str | None) -> Any:
    # A training in one process ignores a value that is not JSON.
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}


def _tasks(data: Any) -> Mapping[str, Any]:
    cluster = data.get("cluster") if isinstance(data, dict) else None
    return cluster if isinstance(cluster, dict) else {}


def _cluster(data: Any, distribution: str) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    given = _tasks(data)
    if not given:
        return {}, ["it has no object `cluster`"]
    tasks, faults = _TASKS[distribution], []
    cluster: dict[str, tuple[str, ...]] = {}
    for kind, addresses in given.items():
        if kind not in tasks:
            faults.append(f"cluster.{kind} is not for this distribution, expected {', '.join(tasks)}")
        elif not isinstance(addresses, list) or not all(map(_is_address, addresses)):
            faults.append(f"cluster.{kind} is {addresses!r}, expected a list of HOST:PORT")
        else:
            cluster[kind] = tuple(addresses)
    for kind, (least, most) in tasks.items():
        count = len(cluster.get(kind, ()))
        if kind not in given and least:
            faults.append(f"cluster.{kind} is missing")
        elif kind in cluster and (count < least or (most is not None and count > most)):
            faults.append(f"cluster.{kind} lists {count} addresses, expected {least if most else f'{least} or more'}")
    every = [address for addresses in cluster.values() for address in addresses]
    if twice := sorted({address for address in every if every.count(address) > 1}):
        faults.append(f"cluster names {', '.join(twice)} twice")
    if not every and not faults:
        faults.append("cluster names no process")
    return cluster, faults


def _task(data: Any) -> tuple[Any, Any]:
    task = data.get("task") if isinstance(data, dict) else None
    return (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)


def _is_address(text: Any) -> bool:
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


def _message(distribution: str, asker: str | None, faults: list[str]) -> str:
    listed = "".join(f"\n  {fault}" for fault in faults)
    asker = asker or f"--distribution={distribution}"
    return (
        f"{asker} needs TF_CONFIG, the same cluster and a task of its own in each process:"
        f"{listed}\nfor example TF_CONFIG='{_EXAMPLES[distribution]}'"
    )
