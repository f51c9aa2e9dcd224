"""The manifest describes a predict's ids as keys, and its graph gets these keys as they were sent, over every wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.bundle import read_bundle
from tests.conformance.conftest import wires_of_server
from tests.conformance.wires import Failure, Request, Wire
from tests.integration.process import server_of
from tests.toy_model import MANIFEST

pytestmark = pytest.mark.tf

VARIABLE = "table/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture(scope="module")
def artifact(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a SavedModel whose graph makes numbers of `word` and `code`, and reads `row` from its table."""
    folder = tmp_path_factory.mktemp("keys") / "1"
    module = tf.Module()
    module.table = tf.Variable(np.arange(10, dtype=np.float32).reshape(5, 2))
    vector = {"word": tf.string, "code": tf.int64, "row": tf.int64}

    @tf.function(input_signature=[tf.TensorSpec([None], dtype, name) for name, dtype in vector.items()])
    def score(word: Any, code: Any, row: Any) -> dict[str, Any]:
        keys = tf.cast(tf.strings.length(word), tf.float32) + 10.0 * tf.cast(code, tf.float32)
        return {"keys": keys, "first": tf.gather(module.table, tf.nn.relu(row))[:, 0]}

    tf.saved_model.save(module, str(folder), {"serving_default": score})
    entry = read_bundle(folder / "variables" / "variables")[VARIABLE]
    (folder / "assets" / "words.txt").write_text("red\ngreen\n")
    (folder / "assets" / "codes.txt").write_text("100\n-5\n")
    ids = {"word": {"ids": "word"}, "code": {"ids": "code"}, "row": {"ids": "row", "on_bad_id": "drop_negative"}}
    manifest = {
        "format_version": 2,
        "tables": {
            "table": {
                "variable": VARIABLE,
                "vocabulary_size": 5,
                "embedding_dim": 2,
                "dtype": entry.dtype,
                "file": "variables/variables.data-00000-of-00001",
                "offset": entry.offset,
                "nbytes": entry.nbytes,
                "crc32c": entry.crc32c,
            }
        },
        "vocabularies": {
            "words": {"file": "assets/words.txt", "size": 2},
            "codes": {"file": "assets/codes.txt", "size": 2, "key_dtype": "int64"},
        },
        "features": {
            "word": {"table": "table", "vocabulary": "words"},
            "code": {"table": "table", "vocabulary": "codes"},
            "row": {"table": "table"},
        },
        "signatures": {"serving_default": {"kind": "predict", "features": ids}},
    }
    (folder / MANIFEST).parent.mkdir(exist_ok=True)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def key_wires(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Wire]]:
    """Yields every wire to a server that runs the graph."""
    with server_of({"keys": artifact.parent}, tmp_path_factory.mktemp("served")) as server:
        yield wires_of_server(server)


def request(**features: list[Any]) -> Request:
    """Returns a request to predict one row of the model "keys"; `features` replace the defaults."""
    return Request("serving_default", {"word": ["red"], "code": [100], "row": [0]} | features, model="keys")


@pytest.mark.parametrize("wire", ["http columns", "http rows", "grpc"])
def test_keys_known_or_not_reach_the_graph_unchanged(key_wires: dict[str, Wire], wire: str) -> None:
    def answer(**features: list[Any]) -> tuple[float, float]:
        outputs = key_wires[wire].send(request(**features))
        return outputs["keys"].item(), outputs["first"].item()

    # Output "keys" is the number of letters of the word + 10 * code; "first" is the first number of the row.
    assert answer(word=["blau"], code=[7000], row=[3]) == (4 + 70000, 6)
    assert answer(word=[""], code=[-5], row=[4]) == (0 - 50, 8)
    assert answer(row=[-9]) == (3 + 1000, 0), "the graph has its own way with ids below 0"


@pytest.mark.parametrize("wire", ["http columns", "http rows", "grpc"])
def test_only_what_the_graph_has_no_policy_for_is_refused(key_wires: dict[str, Wire], wire: str) -> None:
    with pytest.raises(Failure, match='input "row": id 5 at position 0 is out of range, its table has ids 0 to 4'):
        key_wires[wire].send(request(row=[5]))
    refused = r'"word": .*expected .*string|Expects arg\[2\] to be string but int64 is provided'
    with pytest.raises(Failure, match=refused):
        key_wires[wire].send(request(word=[1]))
