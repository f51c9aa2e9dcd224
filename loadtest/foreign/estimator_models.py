"""Copies models that TensorFlow 2.15's TPUEstimator exported, from a folder that is not part of this repository."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from loadtest.foreign.kinds import Examples, Kind, Ragged
from loadtest.foreign.models import ZOO, Rows, Skip
from loadtest.live_server import ROOT

# Environment variable that names the folder of the models that TensorFlow 2.15 exported; by default, the folder lies
# beside the repository.
GOLDEN_VARIABLE = "FOREIGN_GOLDEN"
_IDS = {"a": 10, "b": 10, "c": 20}
_INPUTS: dict[str, dict[str, Kind]] = {
    "cpu": {"examples": Examples(_IDS)},
    "tpu_v1": {"examples": Examples(_IDS)},
    "tpu_v2": {"examples": Examples(_IDS)},
    # The model's inputs are sparse ids; a request sends each as two inputs, values and row splits.
    "tpu_sparse": {f"{name}__values": Ragged(size, splits=f"{name}__row_splits") for name, size in _IDS.items()},
}


def golden_folder() -> Path:
    """Returns the folder of the models that TensorFlow 2.15 exported."""
    given = os.environ.get(GOLDEN_VARIABLE)
    return Path(given) if given else ROOT.parent / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core"


def _copy(export: str, folder: Path, rows: Rows) -> None:
    source = golden_folder() / export / "1"
    if not source.is_dir():
        raise Skip(f"no exports of TensorFlow 2.15 beside the repository; --golden or ${GOLDEN_VARIABLE} says where")
    shutil.copytree(source, folder)


for _name, _inputs in _INPUTS.items():
    ZOO.add(f"estimator_{_name}", _inputs, lambda folder, rows, export=_name: _copy(export, folder, rows))
