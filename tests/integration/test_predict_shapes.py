"""A predict whose graph fails names the input that does not fit; --strict_shapes refuses it before the graph is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.contract_calls import Refused, send_grpc, send_rest
from tests.conformance.contract_models import PREDICT, sign
from tests.conformance.wires import HttpClient
from tests.integration.process import ServerProcess

pytestmark = pytest.mark.tf

RIGHT = {"ids": [[1, 4]], "age": [[2.5]]}


@pytest.fixture(scope="module")
def base(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a model that joins the sum of a table's rows with "age"; its graph reads the table."""
    folder = tmp_path_factory.mktemp("model")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        ids, age = v1.placeholder("int64", [None, None], name="ids"), v1.placeholder("float32", [None, 1], name="age")
        rows = tf.reduce_sum(tf.gather(tf.constant([[float(i), 1.0] for i in range(5)]), ids), 1)
        score = tf.concat([rows, age], 1)
        builder = v1.saved_model.Builder(str(folder / "2"))
        signature = sign(tf, PREDICT, {"ids": ids, "age": age}, {"score": score})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    return folder


@pytest.fixture(scope="module")
def servers(base: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Starts two servers, the second with --strict_shapes."""
    strictly = ServerProcess(model_base_path=base, strict_shapes="true")
    with ServerProcess(model_base_path=base) as usual, strictly as strict:
        yield usual.ready(), strict.ready()


def ask(server: ServerProcess, **inputs: Any) -> Any:
    """Sends a predict over both wires; returns the outputs, or the text of the error."""
    case = {"call": "predict", "spec": {"name": "default"}, "inputs": RIGHT | inputs, "dtypes": {"ids": "int64"}}
    # JSON has no name for a single output, so the case names it.
    case["outputs"] = {"score": []}
    over_grpc, over_http = send_grpc(server.channel, case), send_rest(HttpClient(server.http), case, "columns")
    if isinstance(over_grpc, Refused):
        assert (over_grpc.code, over_http.code) == ("INVALID_ARGUMENT", 400)
        over_grpc, over_http = over_grpc.text, over_http.text
    assert over_grpc == over_http
    return over_grpc


def test_an_input_of_another_rank_is_named(servers: tuple[ServerProcess, ServerProcess]) -> None:
    usual, strict = servers
    fault = 'input "age": the signature declares [?, 1], the request has [1].'
    text = ask(usual, age=[2.5])
    assert text.startswith("ConcatOp : Ranks of all input tensors should match") and text.endswith(f"; {fault}")
    assert ask(strict, age=[2.5]) == fault
    assert ask(usual) == ask(strict) == {"score": [[5.0, 2.0, 2.5]]}


def test_the_input_of_an_id_without_a_row_is_named(servers: tuple[ServerProcess, ServerProcess]) -> None:
    for server in servers:
        assert ask(server, ids=[[1, 9]]) == 'indices[0,1] = 9 is not in [0, 5); input "ids": has 9 at position 1.'


def test_shapes_that_the_graph_takes_are_refused_only_by_the_flag(servers: tuple[ServerProcess, ServerProcess]) -> None:
    usual, strict = servers
    wide = {"age": [[2.5, 3.5]]}
    assert ask(usual, **wide) == {"score": [[5.0, 2.0, 2.5, 3.5]]}
    assert ask(strict, **wide) == 'input "age": the signature declares [?, 1], the request has [1, 2].'
