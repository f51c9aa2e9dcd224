"""A real S3 server (moto) in a process of its own, and a proxy before it that breaks connections."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.integration.process import environment, until, unused_ports

BUCKET = "models"


class S3Server:
    """moto's server on a port that it keeps over restarts; it forgets all objects when it is killed."""

    def __init__(self) -> None:
        (self.port,) = unused_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Starts the server, with an empty bucket."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: self._process.poll() is not None or self._answers())
        assert self._process.poll() is None, "moto can not start"
        httpx.put(f"{self.url}/{BUCKET}", timeout=60).raise_for_status()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/moto-api/data.json", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Ends the server at once, whatever it does."""
        self._process.kill()
        self._process.wait()

    def put(self, key: str, data: bytes) -> None:
        """Uploads an object."""
        self._bucket().put(key, data)

    def delete(self, key: str) -> None:
        """Removes an object."""
        self._bucket().delete(key)

    def _bucket(self) -> Any:
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            endpoint=self.url,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="very-secret",
            client_options={"allow_http": True},
        )

    def upload(self, folder: Path, prefix: str, *, but: str = "") -> int:
        """Uploads a folder's files, all but one; returns their bytes."""
        total = 0
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name != but:
                self.put(f"{prefix}/{name}", path.read_bytes())
                total += path.stat().st_size
        return total

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Returns path below the prefix -> bytes, of all objects."""
        import obstore

        bucket = self._bucket()
        paths = [one["path"] for chunk in obstore.list(bucket, prefix) for one in chunk]
        return {path.removeprefix(prefix): bytes(obstore.get(bucket, path).bytes()) for path in paths}

    def empty(self) -> None:
        """Removes all objects, and forgets what deny() said."""
        httpx.post(f"{self.url}/moto-api/reset", timeout=60).raise_for_status()
        httpx.put(f"{self.url}/{BUCKET}", timeout=60).raise_for_status()

    def variables(self, url: str) -> dict[str, str]:
        """Returns the environment variables by which servers find the store at a URL."""
        return {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "very-secret",
        }

    def deny(self) -> None:
        """Judges the credentials of each request from now on; nobody's are known."""
        httpx.post(f"{self.url}/moto-api/reset-auth", content=b"0", timeout=60).raise_for_status()


class Proxy:
    """Passes bytes on to a server, up to a number of bytes that the server may send; beyond it connections are cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._left: int | None = None
        self.passed_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def allow(self, num_bytes: int | None) -> None:
        """Lets this many bytes more pass to clients; None: all."""
        with self._lock:
            self._left = num_bytes

    def close(self) -> None:
        """Takes no connections any more; a second call does nothing."""
        # A close alone leaves the thread in accept(), which takes one more connection.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=60)
            except OSError:
                client.close()
                continue
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(source, sink, is_answer), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_answer:
                    with self._lock:
                        if self._left is not None:
                            data = data[: self._left]
                            self._left -= len(data)
                            if not data:
                                break
                        self.passed_bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()
