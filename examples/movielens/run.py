"""The folder of a training run: run.json (settings, spec, history, baselines) beside checkpoints/."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_export.distribution.cluster import ClusterTask
from model_export.errors import ExportError
from model_export.folder_checks import RUN_FILE
from model_export.spec.features import ModelSpec
from movielens.examples import baseline_rmse, build_examples, split
from movielens.loop import EpochResult, Trainer
from movielens.rating_model import TrainConfig, rating_model_spec
from movielens.ratings import RatingData

CHECKPOINTS_FOLDER = "checkpoints"
RATING_RANGE = (1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Run:
    """A training run's record: the contents of run.json.

    dataset: name, sha256 and sizes of the training data.
    baselines: held-out RMSE of "global_mean" and "user_film_bias".
    history: one entry per finished epoch.
    film_titles: the titles of all films, by row of the table.
    """

    spec: ModelSpec
    config: TrainConfig
    dataset: Mapping[str, Any]
    baselines: Mapping[str, float]
    history: tuple[EpochResult, ...]
    mean_rating: float
    step: int
    seconds: float
    film_titles: tuple[str, ...] = ()

    @property
    def held_out_rmse(self) -> float:
        """RMSE on the held-out ratings after the training run's last epoch, even if an earlier epoch was better."""
        return self.history[-1].held_out_rmse

    def write(self, folder: Path) -> None:
        """Writes run.json to a temporary file and renames it, so that a reader never sees half of it."""
        data = {**dataclasses.asdict(self), "spec": self.spec.to_json(), "config": self.config.to_json()}
        temporary = folder / f".{RUN_FILE}"
        temporary.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(temporary, folder / RUN_FILE)

    @staticmethod
    def read(folder: Path) -> Run:
        path = folder / RUN_FILE
        try:
            data = json.loads(path.read_text())
            return Run(
                **{
                    **data,
                    "spec": ModelSpec.from_json(data["spec"]),
                    "config": TrainConfig.from_json(data["config"]),
                    "history": tuple(EpochResult(**entry) for entry in data["history"]),
                    "film_titles": tuple(data["film_titles"]),
                }
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExportError(f"cannot read {path}: {error}; is it a folder that `train` wrote?") from error


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for training progress: on_start(steps to do, baselines), on_steps(steps, loss), on_epoch(result)."""

    on_start: Callable[[int, Mapping[str, float]], None] = lambda steps, baselines: None
    on_steps: Callable[[int, float], None] = lambda steps, loss: None
    on_epoch: Callable[[EpochResult], None] = lambda result: None


def train(
    data: RatingData,
    config: TrainConfig,
    folder: Path,
    *,
    is_resumed: bool = False,
    listener: Listener | None = None,
    task: ClusterTask | None = None,
) -> Run:
    """Trains the rating model, writes checkpoints into a folder, and returns the training run's record.

    Processes that train together call this function with equal arguments, except for the task. Each process resumes the
    folder's run, because a restarted process has the same arguments as at its first start.

    Args:
      task: this process's part in the cluster; needed if config.distribution is not "none".
      is_resumed: continue after the last epoch of the run in the folder; only the number of epochs may differ from that
          run.

    Raises:
      ExportError: the folder holds a run and is_resumed is false, or it holds no such run and is_resumed is true.
    """
    listener = listener or Listener()
    spec = rating_model_spec(data)
    before = _run_to_resume(folder, spec, config, data) if is_resumed and task is None else None
    if before is None and task is None and (folder / RUN_FILE).exists():
        raise ExportError(f"{folder} already holds a run; resume it, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    train_part, held_out_part = split(build_examples(data, spec), data, config.held_out)
    baselines = baseline_rmse(train_part, held_out_part)
    trainer = _trainer(config, task)(
        spec,
        config,
        train_part,
        held_out_part,
        rating_range=RATING_RANGE,
        folder=folder / CHECKPOINTS_FOLDER,
        on_steps=listener.on_steps,
    )
    # Read run.json only after all processes have joined the cluster: until then, a failing chief may still write the
    # file.
    if task is not None and (folder / RUN_FILE).exists():
        before = _run_to_resume(folder, spec, config, data)
    done = trainer.resume() if before else 0
    history = list(before.history[:done]) if before else []
    listener.on_start((config.epochs - done) * trainer.steps_per_epoch, baselines)
    run = before
    for epoch in range(done + 1, config.epochs + 1):
        history.append(trainer.run_epoch(epoch))
        listener.on_epoch(history[-1])
        run = Run(
            spec=spec,
            config=config,
            dataset={
                "name": data.name,
                "sha256": data.sha256,
                "ratings": len(data.rating),
                "users": len(data.users),
                "films": len(data.films),
                "held_out_ratings": len(held_out_part),
            },
            baselines=baselines,
            history=tuple(history),
            mean_rating=float(trainer.model.tower.mean_rating.numpy()),
            step=trainer.global_step,
            seconds=(before.seconds if before else 0.0) + time.monotonic() - started,
            film_titles=data.film_titles,
        )
        # Write run.json before the checkpoint: if the process is killed between the two, the resumed run repeats this
        # epoch.
        if task is None or task.is_chief:
            run.write(folder)
        trainer.save(epoch)
    # `run`, the record of the training run, is set: by the loop or, if no epoch was left to train, by the resumed run.
    assert run is not None
    return run


def _trainer(config: TrainConfig, task: ClusterTask | None) -> Callable[..., Any]:
    if config.distribution == "none":
        return Trainer
    # The module of distributed training is imported late, because only runs of several processes need it.
    from movielens.distributed_loop import DistributedTrainer

    if task is None:
        raise ExportError(f"distribution {config.distribution!r} needs the task of this process in the cluster")
    return partial(DistributedTrainer, task=task)


def _run_to_resume(folder: Path, spec: ModelSpec, config: TrainConfig, data: RatingData) -> Run:
    run = Run.read(folder)
    if run.spec != spec or run.dataset["sha256"] != data.sha256:
        raise ExportError(f"{folder} holds a run on other data ({run.dataset['name']}); choose another folder")
    if len(run.history) > config.epochs:
        raise ExportError(f"{folder} already holds {len(run.history)} epochs, more than {config.epochs}")
    if dataclasses.replace(run.config, epochs=config.epochs) != config:
        raise ExportError(f"{folder} holds a run with other settings: {run.config}")
    return run
