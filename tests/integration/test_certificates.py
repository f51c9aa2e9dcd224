"""Callers are recognized by their client certificates alone, on both data planes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.certificates import Authority, Issued, ssl_config
from tests.integration.process import PATIENCE_S, ServerProcess, predict_grpc, until
from tests.toy_model import write_toy_model

AUTHORITY = Authority()
# The authority signed both certificates, but the list of callers names only the first.
RANKER, STRANGER = AUTHORITY.issue("ranker"), AUTHORITY.issue("stranger")
ROWS = [[1.0, 10.0], [4.0, 40.0]]
CALLERS = """
open = []
[[caller]]
name = "ranker"
certificate = ["{name}"]
[[caller.allow]]
models = ["default"]
rights = ["predict"]
[[caller]]
name = "boss"
token_sha256 = ["{digest}"]
[[caller.allow]]
models = ["*"]
rights = ["metadata"]
"""
TOKEN = "the-token-of-the-boss"


@pytest.fixture(scope="module", params=["CN:ranker", "DNS:ranker"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with TLS and client certificates on both wires, and one caller who is known by a certificate."""
    folder = tmp_path_factory.mktemp("certificates")
    write_toy_model(folder / "model" / "1")
    (folder / "ssl.conf").write_text(ssl_config(AUTHORITY.issue(), AUTHORITY))
    (folder / "auth.toml").write_text(CALLERS.format(name=request.param, digest=sha256(TOKEN.encode()).hexdigest()))
    with ServerProcess(
        model_base_path=folder / "model",
        graph_signatures="off",
        ssl_config_file=folder / "ssl.conf",
        rest_api_ssl_config_file=folder / "ssl.conf",
        auth_config=folder / "auth.toml",
    ) as process:
        process.answering().wait_for_log("loaded")
        yield process


def http_client(server: ServerProcess, issued: Issued, folder: Path) -> httpx.Client:
    """Returns a client of the HTTP port that shows this certificate."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    file = folder / "client.pem"
    file.write_text(issued.key + issued.cert)
    context.load_cert_chain(file)
    return httpx.Client(base_url=f"https://localhost:{server.http_port}", verify=context, timeout=PATIENCE_S)


def forwarded(client: httpx.Client) -> dict[str, int]:
    """Returns how many requests the core has forwarded, by wire."""
    plane = client.get("/v1/statusz", headers={"Authorization": f"Bearer {TOKEN}"}).json()["data_plane"]
    found: dict[str, int] = plane["forwarded"]
    return found


def test_http_knows_callers_by_their_certificates(server: ServerProcess, tmp_path: Path) -> None:
    body = {"features": {"user": [1, 4]}}
    with http_client(server, RANKER, tmp_path) as known, http_client(server, STRANGER, tmp_path) as unknown:
        # Two connections send the same header block twice: the server caches the block, but takes the caller from the
        # connection.
        for _ in range(2):
            assert known.post("/v1/models/default:lookup", json=body).json()["embeddings"]["user"] == ROWS
            refused = unknown.post("/v1/models/default:lookup", json=body)
            assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Bearer")
        # The core forwarded only this request for the status page.
        assert forwarded(known)["http"] == 1
        assert known.get("/v1/models/default").status_code == 403


def test_grpc_knows_callers_by_their_certificates(server: ServerProcess, tmp_path: Path) -> None:
    def channel(issued: Issued) -> grpc.Channel:
        pems = (AUTHORITY.pem.encode(), issued.key.encode(), issued.cert.encode())
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(f"localhost:{server.grpc_port}", grpc.ssl_channel_credentials(*pems), options)

    with channel(RANKER) as known, channel(STRANGER) as unknown:
        until(lambda: grpc.channel_ready_future(known).result(PATIENCE_S) is None)
        for _ in range(2):
            assert predict_grpc(known, {"user": np.array([1, 4])}, "lookup")["user"].tolist() == ROWS
            with pytest.raises(grpc.RpcError) as caught:
                predict_grpc(unknown, {"user": np.array([1, 4])}, "lookup")
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        status = message_class("tensorflow.serving.GetModelStatusRequest")()
        status.model_spec.name = "default"
        with pytest.raises(grpc.RpcError) as caught:
            call = known.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
            call(status.SerializeToString(), timeout=PATIENCE_S)
        # The refusal comes from the control server: it knows the caller from the certificate, and this caller lacks
        # the right.
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    with http_client(server, RANKER, tmp_path) as client:
        assert forwarded(client)["grpc"] == 1
