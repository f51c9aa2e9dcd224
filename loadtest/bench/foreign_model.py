"""Prepares another program's model for the benchmark: the original, and a version adopted without a spec.

python -m loadtest.bench.foreign_model FOLDER full|quick|tiny
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import orjson

from loadtest.bench.messages import JSON_TYPE, Wire, decode_grpc
from loadtest.bench.workloads import FULL, MODEL, SMALL, TINY, Arrays, Data
from loadtest.foreign.peer_model import ITEMS, TAGS, USERS, peer
from loadtest.foreign.random_tables import normal
from loadtest.live_server import ROOT
from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

# Folder names of the original foreign model and of its adopted version.
WHOLE, ADOPTED = "foreign_whole", "foreign_adopted"
# The size "quick" has small tables, because adopting tables of full size takes minutes.
SIZES = {"full": FULL, "quick": replace(FULL, tables=SMALL.tables), "tiny": TINY}
_SIGNATURES = {"W1": "w1", "W2": "w2", "W3": "w2", "W4": "w4", "W5": "w5"}
# Maps the benchmark's names of inputs and outputs (in Data.requests and Data.expected) to the foreign model's names.
_INPUTS = {"tags__values": "tag_values", "tags__row_splits": "tag_splits"}
_OUTPUTS = {"user": "user_emb", "item": "item_emb", "tags": "tag_emb"}


class ForeignData(Data):
    """The benchmark's requests, and the expected answers of the foreign model, which has tables of its own."""

    @cached_property
    def tables(self) -> Arrays:
        """The foreign model's tables by name, [V, D] float32."""
        return {name: normal(name, *shape) for name, shape in self.sizes.tables.items()}

    @cached_property
    def tower(self) -> Arrays:
        """The weights of the foreign model's dense tower, in the form of Data.tower."""
        wide, hidden = sum(dim for _, dim in self.sizes.tables.values()), 256
        return {
            "kernel_1": normal("tower_kernel", wide, hidden, scale=0.1),
            "bias_1": normal("tower_bias", hidden, scale=0.1),
            "kernel_2": normal("tower_last_kernel", hidden, 1, scale=0.1),
            "bias_2": normal("tower_last_bias", 1, scale=0.1),
        }

    def expected(self, workload: str, inputs: Arrays) -> Arrays:
        """Computes the outputs that a workload's signature of the foreign model should return."""
        found = super().expected(workload, inputs)
        if workload == "W1":
            return {"emb": np.concatenate([found["user"], found["item"], found["tags"]], axis=1)}
        if workload == "W4":
            return {"rows": found["item"]}
        return {_OUTPUTS.get(name, name): array for name, array in found.items()}


def _named(workload: str, inputs: Arrays) -> dict[str, list[int]]:
    if workload == "W4":
        return {"ids": inputs["item"].tolist()}
    if workload == "W1":
        # In the signature w1 each feature has one id per row, so the inputs have no row splits.
        return {
            "user": inputs["user"].tolist(),
            "item": inputs["item"].tolist(),
            "tag": inputs["tags__values"].tolist(),
        }
    return {_INPUTS.get(name, name): array.tolist() for name, array in inputs.items()}


def _encode_grpc(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    message = predict_request(message_classes()[0], MODEL, _SIGNATURES[workload], _named(workload, inputs))
    return message.SerializeToString(), ()


def _encode_json(workload: str, inputs: Arrays) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    body = {"signature_name": _SIGNATURES[workload], "inputs": _named(workload, inputs)}
    return orjson.dumps(body), (JSON_TYPE,)


def _decode_json(body: bytes, _headers: dict[str, str]) -> Arrays:
    outputs = json.loads(body)["outputs"]
    # A JSON answer with a single output has no name of the output; of these signatures, only w1 has a single one.
    named = outputs if isinstance(outputs, dict) else {"emb": outputs}
    return {name: np.array(rows, np.float32) for name, rows in named.items()}


GRPC = Wire(True, lambda _: PREDICT_METHOD, _encode_grpc, decode_grpc)
JSON = Wire(False, lambda _: f"/v1/models/{MODEL}:predict", _encode_json, _decode_json)


def prepare(folder: Path, sizes: str) -> None:
    """Builds the foreign model and adopts it, in a child process, unless the folder has both versions already."""
    if not (folder / ADOPTED / "1").exists():
        command = [sys.executable, "-m", "loadtest.bench.foreign_model", str(folder), sizes]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the foreign model failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Builds and adopts the foreign model in this process, which imports TensorFlow once for both."""
    from model_export import adopt

    folder, tables = Path(sys.argv[1]), SIZES[sys.argv[2]].tables
    rows = {USERS: tables["user"][0], ITEMS: tables["item"][0], TAGS: tables["tag"][0]}
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / WHOLE / "1"
    if not whole.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            peer(Path(scratch) / "1", rows.__getitem__)
            whole.parent.mkdir(exist_ok=True)
            (Path(scratch) / "1").rename(whole)
    adopt(whole, out=folder / ADOPTED)


if __name__ == "__main__":
    main()
