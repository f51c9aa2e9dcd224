"""Sends requests of one frame whose answers take several, whatever part of an answer a client's windows let through."""

from __future__ import annotations

import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.conformance.wires import fill_tensor
from tests.integration.conftest import Serve
from tests.integration.h2_client import H2Client, framed
from tests.integration.process import ServerProcess

IDS = np.tile(np.arange(1, 5), 2000)


@pytest.fixture
def server(serve: Serve) -> ServerProcess:
    """Serves the toy model with answers in tensor_content."""
    return serve("--enable_serialization_as_tensor_content").ready()


def request() -> bytes:
    """Returns a PredictRequest of 8,000 ids that fits in one frame; its answer has 64 KB of vectors."""
    message = message_class("tensorflow.serving.PredictRequest")()
    message.model_spec.name, message.model_spec.signature_name = "default", "lookup"
    message.output_filter.append("user")
    fill_tensor(message.inputs["user"], IDS)
    data: bytes = message.SerializeToString()
    assert len(data) < 16_000
    return data


# Three sizes of a stream's receive window: larger than all answers, larger than one answer of 64 KB, smaller than one.
@pytest.mark.parametrize("window", [None, 100_000, 30_000])
def test_they_come_whole(server: ServerProcess, window: int | None) -> None:
    wanted = np.stack([IDS, 10 * IDS], axis=1).astype(np.float32)
    with H2Client(server.grpc_port, window) as client:
        for _ in range(3):
            stream_ids = [client.begin() for _ in range(3)]
            for stream_id in stream_ids:
                client.h2.send_data(stream_id, framed(request()), end_stream=True)
            client.flush()
            taken = dict.fromkeys(stream_ids, 0)
            while not all(client.answers[stream_id].is_over for stream_id in stream_ids):
                client.receive()
                for stream_id in stream_ids if window is not None else ():
                    answer = client.answers[stream_id]
                    more = len(answer.data) - taken[stream_id]
                    if more and not answer.is_over:
                        client.h2.increment_flow_control_window(more, stream_id)
                    if more:
                        client.h2.increment_flow_control_window(more)
                    taken[stream_id] += more
                client.flush()
            for stream_id in stream_ids:
                answer = client.answers[stream_id]
                assert answer.status == 0, answer.headers
                response = message_class("tensorflow.serving.PredictResponse").FromString(answer.message)
                content = response.outputs["user"].tensor_content
                np.testing.assert_array_equal(np.frombuffer(content, "<f4").reshape(-1, 2), wanted)
