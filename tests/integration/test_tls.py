"""TLS on both wires: clients that are let in, changes of the file, and connections that end without a handshake."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc
import httpx
import numpy as np
import pytest

from embedding_client.async_client import AsyncEmbeddingClient
from embedding_client.client import EmbeddingClient
from embedding_client.errors import Unavailable
from embedding_client.targets import Tls
from tests.certificates import Authority, Issued, ssl_config
from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, environment, predict_grpc, until
from tests.toy_model import write_toy_model

AUTHORITY, STRANGER = Authority(), Authority("stranger")
CLIENT, OTHER_CLIENT = AUTHORITY.issue("client"), STRANGER.issue("client")
ROWS = [[1.0, 10.0], [4.0, 40.0]]
Wire = Literal["grpc", "http"]


@dataclass
class Secured:
    """A server of which some ports speak TLS.

    verifying: the wires that let in AUTHORITY's clients only.
    """

    process: ServerProcess
    file: Path
    wires: tuple[Wire, ...]
    verifying: tuple[Wire, ...]

    def port(self, wire: Wire) -> int:
        """Returns the server's port for a wire."""
        return int(self.process.grpc_port if wire == "grpc" else self.process.http_port)

    def show(self, text: str) -> None:
        """Replaces the server's TLS file in one step, as Kubernetes does with the files of a secret."""
        hidden = self.file.with_suffix(".new")
        hidden.write_text(text)
        os.replace(hidden, self.file)


# Name -> the wires with TLS, and those that let in clients of AUTHORITY only.
SERVERS: dict[str, tuple[tuple[Wire, ...], tuple[Wire, ...]]] = {
    "both": (("grpc", "http"), ("grpc", "http")),
    "gRPC alone": (("grpc",), ("grpc",)),
    "any client": (("grpc", "http"), ()),
}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Starts a server with TLS on these ports and on a Unix socket."""
    folder = tmp_path_factory.mktemp("tls")
    write_toy_model(folder / "model" / "1")
    wires, verifying = SERVERS[request.param]
    file = folder / "ssl.conf"
    file.write_text(ssl_config(AUTHORITY.issue(), AUTHORITY if verifying else None))
    flags = {"grpc": "ssl_config_file", "http": "rest_api_ssl_config_file"}
    given: dict[str, object] = {
        "model_base_path": folder / "model",
        "graph_signatures": "off",
        "file_system_poll_wait_seconds": 0.05,
        "stall_timeout_s": 3,
        "grpc_socket_path": folder / "socket",
        **{flags[wire]: file for wire in wires},
    }
    with ServerProcess(**given) as process:
        process.answering().wait_for_log("loaded")
        secured = Secured(process, file, wires, verifying)
        if "http" in wires:
            process.http.close()
            process.http = http_client(secured, CLIENT)
        until(lambda: process.http.get("/readyz").status_code == 200)
        yield secured
        process.signal(15)
        assert process.exit_code() == 0
        # The server expected all that the tests sent: it logged no traceback and no destroyed task.
        assert not [record for record in process.records if "traceback" in record or "destroyed" in record["message"]]


def context(issued: Issued | None = None) -> ssl.SSLContext:
    """Returns a client's TLS context, which trusts AUTHORITY and may have a certificate."""
    made = ssl.create_default_context(cadata=AUTHORITY.pem)
    if issued is not None:
        descriptor = os.memfd_create("client")
        with open(descriptor, "w") as file:
            file.write(issued.key + issued.cert)
            file.flush()
            made.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return made


def http_client(server: Secured, issued: Issued | None) -> httpx.Client:
    """Returns a client of the server's HTTPS port, with a certificate if one is given."""
    url = f"https://localhost:{server.port('http')}"
    return httpx.Client(base_url=url, verify=context(issued), timeout=PATIENCE_S)


@contextmanager
def channel(server: Secured, issued: Issued | None) -> Iterator[grpc.Channel]:
    """Opens a channel of the stock library to the gRPC port."""
    pems = (issued.key.encode(), issued.cert.encode()) if issued else (None, None)
    credentials = grpc.ssl_channel_credentials(AUTHORITY.pem.encode(), *pems)
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{server.port('grpc')}", credentials, options) as made:
        yield made


def predict(made: grpc.Channel, ids: Any = (1, 4)) -> Any:
    """Looks up users over gRPC; returns their rows."""
    return predict_grpc(made, {"user": np.array(ids)}, "lookup")["user"].tolist()


def lookup(client: httpx.Client, ids: Any = (1, 4)) -> Any:
    """Looks up users over HTTP; returns their embeddings."""
    response = client.post("/v1/models/default:lookup", json={"features": {"user": list(ids)}})
    assert response.status_code == 200, response.text
    return response.json()["embeddings"]["user"]


@contextmanager
def secured(server: Secured, wire: Wire, made: ssl.SSLContext | None = None) -> Iterator[ssl.SSLSocket]:
    """Yields a connection after a handshake that succeeded for the client."""
    made = made or context(CLIENT)
    made.set_alpn_protocols(["h2" if wire == "grpc" else "http/1.1"])
    with socket.create_connection(("127.0.0.1", server.port(wire)), PATIENCE_S) as plain:
        with made.wrap_socket(plain, server_hostname="localhost") as connection:
            yield connection


def ended(connection: socket.socket) -> bool:
    """Waits until the server closes a connection, whatever it sends before; fails if it takes too long."""
    try:
        while connection.recv(1 << 16):
            pass
    except OSError as error:
        assert not isinstance(error, TimeoutError)
    return True


def metric(server: Secured, name: str) -> dict[str, float]:
    """Reads a metric's values by wire and, if the metric has that label, by outcome."""
    text = server.process.http.get("/metrics").text
    found = re.findall(rf'^{name}\{{api="(\w+)"(?:,outcome="(\w+)")?\}} (\S+)$', text, re.MULTILINE)
    return {f"{api} {outcome}".strip(): float(value) for api, outcome, value in found}


def test_answers_are_those_of_plaintext(server: Secured) -> None:
    many = [n % 5 for n in range(100_000)]
    with channel(server, CLIENT) as made:
        # The second request has a header block that the connection has seen; the requests with many ids exceed the
        # connection's buffers.
        for ids in ((1, 4), (1, 4), many, many, (1, 4)):
            assert predict(made, ids) == [[float(n), n * 10.0] for n in ids]
    if "http" in server.wires:
        with http_client(server, CLIENT) as client:
            for ids in ((1, 4), (1, 4), many, many, (1, 4)):
                assert lookup(client, ids) == [[float(n), n * 10.0] for n in ids]
            assert client.get("/v1/models/default").status_code == 200


def test_many_connections_at_once(server: Secured) -> None:
    answers: list[Any] = []

    def ask() -> None:
        with channel(server, CLIENT) as made:
            answers.append(predict(made))
        if "http" in server.wires:
            with http_client(server, CLIENT) as client:
                answers.append(lookup(client))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [ROWS] * 8 * len(server.wires)


@pytest.mark.parametrize("issued", [None, OTHER_CLIENT], ids=["none", "of another authority"])
def test_a_client_without_a_certificate_of_the_authority_is_let_in_only_where_clients_are_not_verified(
    server: Secured, issued: Issued | None
) -> None:
    failed = metric(server, "embedding_server_tls_handshakes_failed_total")
    with channel(server, issued) as made:
        if "grpc" in server.verifying:
            with pytest.raises(grpc.RpcError) as caught:
                predict(made)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        else:
            assert predict(made) == ROWS
    for wire in server.verifying:
        with secured(server, wire, context(issued)) as connection:
            # In TLS 1.3 the handshake succeeds for the client; its first read fails if the server refused its
            # certificate.
            assert ended(connection)
    if "http" in server.wires and "http" not in server.verifying:
        with http_client(server, issued) as client:
            assert lookup(client) == ROWS
    now = metric(server, "embedding_server_tls_handshakes_failed_total")
    for wire in server.verifying:
        assert now[wire] > failed[wire]


def test_a_client_with_a_long_chain_is_refused(server: Secured) -> None:
    if "http" not in server.verifying:
        pytest.skip("the number of a client's certificates is limited where clients are verified")
    for count in (3, 4):
        longer = Issued(CLIENT.key, CLIENT.cert + STRANGER.pem * count)
        with secured(server, "http", context(longer)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            got = b""
            try:
                while data := connection.recv(4096):
                    got += data
            except OSError as error:
                assert not isinstance(error, TimeoutError)
            assert got.startswith(b"HTTP/1.1 200 ") == (count == 3), got


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\xff\xff" * 99],
    ids=["http", "http2", "damaged"],
)
def test_what_is_no_tls_ends_the_connection(server: Secured, sent: bytes) -> None:
    for wire in server.wires:
        with socket.create_connection(("127.0.0.1", server.port(wire)), PATIENCE_S) as connection:
            connection.sendall(sent)
            assert ended(connection)


def test_a_client_that_never_ends_its_handshake_is_ended(server: Secured) -> None:
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    # The first connection sends half of a TLS hello, the others send nothing.
    wires = ["grpc", *server.wires]
    with ExitStack() as stack:
        half, *silent = (
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port(wire)), PATIENCE_S)))
            for wire in wires
        )
        half.sendall(hello.read()[:60])
        assert all(map(ended, [half, *silent]))


def test_old_protocols_and_connections_that_do_not_agree_on_http_2_are_refused(server: Secured) -> None:
    for wire in server.wires:
        old = context(CLIENT)
        with pytest.warns(DeprecationWarning):
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(OSError) as caught, secured(server, wire, old):
            pass
        assert not isinstance(caught.value, TimeoutError)
        just_new_enough = context(CLIENT)
        just_new_enough.maximum_version = ssl.TLSVersion.TLSv1_2
        with secured(server, wire, just_new_enough) as connection:
            assert connection.version() == "TLSv1.2"
            assert connection.selected_alpn_protocol() == ("h2" if wire == "grpc" else "http/1.1")
    with socket.create_connection(("127.0.0.1", server.port("grpc")), PATIENCE_S) as plain:
        try:
            with context(CLIENT).wrap_socket(plain, server_hostname="localhost") as connection:
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                assert ended(connection)
        except OSError as error:
            assert not isinstance(error, TimeoutError)


def serial(server: Secured, wire: Wire) -> int:
    """Returns the serial number of the certificate that the server shows to a new connection."""
    with secured(server, wire) as connection:
        shown = connection.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(server: Secured) -> None:
    authority = AUTHORITY if server.verifying else None
    first, second = AUTHORITY.issue(), AUTHORITY.issue()

    def shows(issued: Issued) -> Callable[[], bool]:
        return lambda: all(serial(server, wire) == issued.serial for wire in server.wires)

    server.show(ssl_config(first, authority))
    until(shows(first))
    with channel(server, CLIENT) as made:
        assert predict(made) == ROWS
        client = http_client(server, CLIENT) if "http" in server.wires else None
        if client is not None:
            assert lookup(client) == ROWS
        refused = metric(server, "embedding_server_tls_reloads_total")["grpc refused"]
        server.show(ssl_config(Issued(second.key, first.cert), authority))
        until(lambda: metric(server, "embedding_server_tls_reloads_total")["grpc refused"] == refused + 1)
        assert shows(first)()
        server.process.wait_for_log(
            "certificate refused, the one before stays",
            reason="server_key does not belong to the first certificate in server_cert",
        )
        server.show(ssl_config(second, authority))
        until(shows(second))
        # Connections that were opened before keep the first certificate, and are still served.
        assert predict(made) == ROWS
        if client is not None:
            assert lookup(client) == ROWS
            client.close()
    ends = metric(server, "embedding_server_tls_certificate_end_timestamp_seconds")
    assert set(ends) == set(server.wires)
    # The test's certificates end a day after they were made.
    assert all(0 < value - os.stat(server.file).st_mtime < 2 * 86400 for value in ends.values())
    assert not any(line in str(server.process.records) for line in second.key.splitlines()[1:-1])


def test_the_client_on_both_wires_blocking_and_not(server: Secured, tmp_path: Path) -> None:
    for name, text in (("ca", AUTHORITY.pem), ("key", CLIENT.key), ("cert", CLIENT.cert)):
        (tmp_path / name).write_text(text)

    def ask(target: str, tls: Tls) -> Any:
        with EmbeddingClient(target, model="default", tls=tls, timeout_s=PATIENCE_S, retries=0) as client:
            return client.lookup({"user": [1, 4]})["user"].tolist()

    async def ask_async(target: str, tls: Tls) -> Any:
        made = AsyncEmbeddingClient(target, model="default", tls=tls, timeout_s=PATIENCE_S, retries=0)
        async with made as client:
            return (await client.lookup({"user": [1, 4]}))["user"].tolist()

    ca, cert, key = tmp_path / "ca", tmp_path / "cert", tmp_path / "key"
    for wire in server.wires:
        target = f"{'grpcs' if wire == 'grpc' else 'https'}://localhost:{server.port(wire)}"
        for get in (ask, lambda *given: asyncio.run(ask_async(*given))):
            assert get(target, Tls(ca, cert, key)) == ROWS
            # The client does not trust the server, or shows it no certificate.
            for stranger in (Tls(cert_file=cert, key_file=key), *([Tls(ca)] if wire in server.verifying else [])):
                with pytest.raises(Unavailable):
                    get(target, stranger)


def test_a_unix_socket_and_a_port_without_a_file_stay_plaintext_and_end_tls(server: Secured) -> None:
    path = server.file.parent / "socket"
    with grpc.insecure_channel(f"unix:{path}") as made:
        assert predict(made) == ROWS
    plaintext = [(socket.AF_UNIX, str(path))]
    if "http" not in server.wires:
        assert lookup(server.process.http) == ROWS
        plaintext.append((socket.AF_INET, ("127.0.0.1", server.port("http"))))  # type: ignore[arg-type]
    for family, address in plaintext:
        with socket.socket(family) as plain:
            plain.settimeout(PATIENCE_S)
            plain.connect(address)
            with pytest.raises(OSError) as caught:
                context().wrap_socket(plain, server_hostname="localhost")
            assert not isinstance(caught.value, TimeoutError)


def test_the_image_s_check(server: Secured) -> None:
    if "http" not in server.wires:
        pytest.skip("there is no TLS")
    variables = {
        "EMB_REST_API_PORT": str(server.port("http")),
        "EMB_REST_API_SSL_CONFIG_FILE": str(server.file),
        "EMB_HOST": "127.0.0.1",
    }

    def check(**more: str) -> int:
        command = [sys.executable, "-m", "service.healthcheck"]
        done = subprocess.run(command, cwd=ROOT, env=environment(**(variables | more)), capture_output=True)
        return done.returncode

    assert check() == 0
    assert check(EMB_REST_API_SSL_CONFIG_FILE="") == 1


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_curl(server: Secured, tmp_path: Path) -> None:
    if "http" not in server.wires:
        pytest.skip("there is no TLS")
    for name, text in (("ca", AUTHORITY.pem), ("key", CLIENT.key), ("cert", CLIENT.cert)):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--cacert", "ca", "--cert", "cert", "--key", "key", "--max-time", "60"]
        + [f"https://localhost:{server.port('http')}/v1/models/default:lookup", "--data"]
        + ['{"features": {"user": [1, 4]}}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == '{"embeddings":{"user":[[1.0,10.0],[4.0,40.0]]}}', done.stderr


def test_a_file_that_can_not_be_used_stops_the_start(base: Path, tmp_path: Path) -> None:
    one, other = AUTHORITY.issue(), AUTHORITY.issue()
    (tmp_path / "ssl.conf").write_text(ssl_config(Issued(one.key, other.cert)))
    settings = {"model_base_path": base, "graph_signatures": "off"}
    with ServerProcess(rest_api_ssl_config_file=tmp_path / "ssl.conf", **settings) as process:
        assert process.exit_code() == 2
        fault = "server_key does not belong to the first certificate in server_cert"
        why = f"--rest_api_ssl_config_file={tmp_path}/ssl.conf: {fault}"
        process.wait_for_log("cannot start", reason=why)
        assert not any(line in str(process.records) for line in one.key.splitlines()[1:-1])
