"""Training in several real processes on loopback: both strategies, a worker that is killed, and a wrong TF_CONFIG.

`model-export train` and EmbeddingEstimator are trained in this way.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import ForkedProcess, ForkServer, fork_server
from tests.integration.process import unused_ports

pytestmark = [pytest.mark.tf, pytest.mark.slow]

ForkServers = tuple[ForkServer, ...]

TRAIN = ("model_export", "train", "--dataset=synthetic", "--batch_size=200")
ESTIMATOR = ("tests.integration.estimator_process",)
# Modules that the training processes import.
IMPORTED = ("model_export.commands", "movielens.distributed_loop", "model_export.estimator.estimator")
STEPS = "200"
# Longest time of a training process in seconds, far more than a loaded machine needs; a process that hangs is killed.
PATIENCE_S = 300


def outside_clusters() -> dict[str, str]:
    """Returns this process's environment without the place of a task in a cluster."""
    return {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}


class Cluster:
    """The processes of one distributed training, by "kind:index"."""

    def __init__(self, forks: ForkServers, sizes: Mapping[str, int], command: Sequence[object]) -> None:
        addresses = (f"127.0.0.1:{port}" for port in unused_ports(sum(sizes.values())))
        self.tasks = {kind: [next(addresses) for _ in range(size)] for kind, size in sizes.items()}
        self.forks, self.command = forks, command
        self.processes: dict[str, ForkedProcess] = {}

    def start(self, name: str) -> None:
        """Starts the process of a task, also again after it has ended."""
        kind, _, index = name.partition(":")
        config = {"cluster": self.tasks, "task": {"type": kind, "index": int(index)}}
        forks = self.forks[len(self.processes) % len(self.forks)]
        environment = outside_clusters() | {"TF_CONFIG": json.dumps(config)}
        self.processes[name] = forks.start(*self.command, environment=environment)

    def kill(self, name: str) -> None:
        """Ends a process with SIGKILL."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.end(name)

    def end(self, name: str) -> tuple[int, str]:
        """Waits for the end of a process; returns its exit status and all that it wrote."""
        return self.processes[name].end(PATIENCE_S)


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServers]:
    """Runs two processes that import TensorFlow for all training processes.

    They have different hash seeds: the workers of a training must not depend on a common order of sets.
    """
    with fork_server(IMPORTED, 1) as one, fork_server(IMPORTED, 2) as other:
        yield one, other


@contextmanager
def started(forks: ForkServers, sizes: Mapping[str, int], *command: object) -> Iterator[Cluster]:
    """Starts all processes of a cluster; kills the ones that still run at the end."""
    cluster = Cluster(forks, sizes, command)
    try:
        for kind, size in sizes.items():
            for index in range(size):
                cluster.start(f"{kind}:{index}")
        yield cluster
    finally:
        for name in cluster.processes:
            cluster.kill(name)


def wait_for(path: Path, cluster: Cluster, name: str) -> None:
    """Waits until a file exists, or fails if the process that is to write it has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert cluster.processes[name].poll() is None, cluster.end(name)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def history(run: Path) -> list[Any]:
    """Returns the held-out RMSE of each epoch."""
    return [epoch["held_out_rmse"] for epoch in json.loads((run / "run.json").read_text())["history"]]


@pytest.fixture(scope="module")
def single(forks: ForkServers, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Trains in one process; returns the held-out RMSE of each epoch."""
    run = tmp_path_factory.mktemp("single") / "run"
    status, output = forks[0].start(*TRAIN, "--epochs=3", "--run", run, environment=outside_clusters()).end(PATIENCE_S)
    assert status == 0, output
    return history(run)


def test_tables_in_shards_train_as_in_one_process_though_a_worker_is_killed(
    forks: ForkServers, single: list[Any], tmp_path: Path
) -> None:
    from service.artifact.bundle import read_bundle

    run = tmp_path / "run"
    command = (*TRAIN, "--distribution=parameter_server", "--epochs=3", "--run", run)
    with started(forks, {"chief": 1, "worker": 1, "ps": 2}, *command) as cluster:
        wait_for(run / "run.json", cluster, "chief:0")
        cluster.kill("worker:0")
        cluster.start("worker:0")
        status, output = cluster.end("chief:0")
        assert status == 0, output
        for name in ("worker:0", "ps:0", "ps:1"):
            cluster.processes[name].send_signal(signal.SIGTERM)
            assert cluster.end(name)[0] == 0
    assert history(run) == pytest.approx(single, abs=0.003)
    table = read_bundle(run / "checkpoints/ckpt-3")["model/embedding/_tpu_embedding/user/.ATTRIBUTES/VARIABLE_VALUE"]
    assert [(part.start, part.entry.shape) for part in table.slices] == [((0, 0), (31, 32)), ((31, 0), (30, 32))]


def test_workers_that_step_together_resume_after_one_is_killed(
    forks: ForkServers, single: list[Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with started(forks, {"worker": 2}, *TRAIN, "--distribution=multi_worker", "--epochs=3", "--run", run) as cluster:
        wait_for(run / "checkpoints/checkpoint", cluster, "worker:0")
        cluster.kill("worker:1")
        status, output = cluster.end("worker:0")
        assert status == 1 and "start every process that has ended again" in output, output
        first = history(run)
        for name in ("worker:0", "worker:1"):
            cluster.start(name)
        for name in ("worker:0", "worker:1"):
            status, output = cluster.end(name)
            assert status == 0, output
    assert history(run)[0] == first[0]
    assert history(run) == pytest.approx(single, abs=0.003)


def rmse(output: str) -> float:
    """Returns the held-out RMSE that the chief of an estimator's training printed."""
    return float(output.rpartition("rmse ")[2].split()[0])


@pytest.fixture(scope="module")
def single_estimator(forks: ForkServers, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Trains an estimator in one process; returns the held-out RMSE."""
    process = forks[0].start(*ESTIMATOR, tmp_path_factory.mktemp("estimator"), STEPS, environment=outside_clusters())
    status, output = process.end(PATIENCE_S)
    assert status == 0, output
    return rmse(output)


def test_an_estimators_workers_step_together_and_resume(
    forks: ForkServers, single_estimator: float, tmp_path: Path
) -> None:
    with started(forks, {"worker": 2}, *ESTIMATOR, tmp_path, STEPS, "--mirrored") as cluster:
        wait_for(tmp_path / "model.ckpt-50.index", cluster, "worker:0")
        cluster.kill("worker:1")
        status, output = cluster.end("worker:0")
        assert status and "start every process that has ended again" in output, output
        for name in ("worker:0", "worker:1"):
            cluster.start(name)
        for name in ("worker:1", "worker:0"):
            status, output = cluster.end(name)
            assert status == 0, output
    assert rmse(output) == pytest.approx(single_estimator, abs=0.003)


def test_an_estimators_tables_lie_in_parts_on_parameter_servers(
    forks: ForkServers, single_estimator: float, tmp_path: Path
) -> None:
    with started(forks, {"chief": 1, "worker": 1, "ps": 2}, *ESTIMATOR, tmp_path, STEPS) as cluster:
        wait_for(tmp_path / "model.ckpt-0.index", cluster, "chief:0")
        cluster.kill("worker:0")
        wait_for(tmp_path / "model.ckpt-150.index", cluster, "chief:0")
        cluster.start("worker:0")
        for name in ("worker:0", "ps:1", "ps:0", "chief:0"):
            status, output = cluster.end(name)
            assert status == 0, output
    # The chief and the worker train at their own pace, so the RMSE differs from run to run, by up to 0.003 here and by
    # 0.011 if both make most steps at the same time. After 150 steps in one process it is 0.017 higher.
    assert rmse(output) == pytest.approx(single_estimator, abs=0.01)


def test_a_missing_tf_config_is_refused(forks: ForkServers, tmp_path: Path) -> None:
    command = (*TRAIN, "--distribution=multi_worker", f"--run={tmp_path / 'run'}")
    status, output = forks[0].start(*command, environment=outside_clusters()).end(PATIENCE_S)
    assert status == 1
    assert "needs TF_CONFIG" in output and "Traceback" not in output
    assert not (tmp_path / "run").exists()
