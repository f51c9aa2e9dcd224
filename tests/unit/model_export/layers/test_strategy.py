"""Without a TPU, tpu_strategy notes it and gives the default strategy, or raises an error if it must have one."""

from __future__ import annotations

import socket

import pytest

from model_export.errors import ExportError
from tests.unit.model_export.layers.late import Late, TPUEmbedding, tf
from tests.unit.model_export.layers.reference import film_batch, film_config

pytestmark = pytest.mark.tf

tpu_strategy = Late("model_export.layers.tpu_embedding", "tpu_strategy")


@pytest.fixture
def _no_tpu() -> None:
    if tf.config.list_physical_devices("TPU"):
        pytest.skip("a TPU is attached to this machine")


@pytest.mark.usefixtures("_no_tpu")
def test_without_a_tpu_the_default_strategy_trains_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    strategy = tpu_strategy()
    assert strategy is tf.distribute.get_strategy()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["no TPU is attached"]
    with strategy.scope():
        layer = TPUEmbedding(film_config(tf), "sgd")
    assert layer(film_batch(tf))["user"].shape == (3, 4)


@pytest.mark.usefixtures("_no_tpu")
def test_a_local_tpu_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    with pytest.raises(ExportError, match="TPU 'local' can not be used: no TPU is attached to this machine"):
        tpu_strategy("local")


def test_an_address_where_nobody_answers_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ExportError, match=f"no answer of 127.0.0.1:{port} within 3 s"):
        tpu_strategy(f"grpc://127.0.0.1:{port}")


def test_a_listener_that_is_no_tpu_is_an_error_and_not_a_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(ExportError, match="no answer of .* within 3 s"):
            tpu_strategy(f"grpc://127.0.0.1:{silent.getsockname()[1]}")


def test_a_named_tpu_needs_a_metadata_server_that_answers() -> None:
    try:
        socket.create_connection(("metadata.google.internal", 80), timeout=3).close()
    except OSError:
        with pytest.raises(ExportError, match="TPU 'mine' can not be used: no answer of metadata.google.internal:80"):
            tpu_strategy("mine")
    else:
        pytest.skip("this machine has a metadata server")


def test_an_address_without_a_number_for_a_port_is_an_error() -> None:
    with pytest.raises(ExportError, match="can not be used"):
        tpu_strategy("grpc://127.0.0.1:tpu")
