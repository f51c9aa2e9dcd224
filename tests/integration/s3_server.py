"""Starts a real S3 server (moto) in a process of its own."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.integration.cloud_emulators import BUCKET, Emulator
from tests.integration.process import unused_ports


class S3Server(Emulator):
    """moto's server on a port that it keeps over restarts; it forgets all objects when it is killed."""

    def __init__(self) -> None:
        (self.port,) = unused_ports(1)
        self.start()

    def start(self) -> None:
        """Starts the S3 server and waits until it answers; its bucket is empty."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(command, self.port)
        httpx.put(f"{self.url}/{BUCKET}", timeout=60).raise_for_status()

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
        """Uploads a folder's files except the file `but`; returns the sum of their sizes."""
        total = 0
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name != but:
                self.put(f"{prefix}/{name}", path.read_bytes())
                total += path.stat().st_size
        return total

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Returns all objects below a prefix of the bucket: path without the prefix -> bytes."""
        import obstore

        bucket = self._bucket()
        paths = [one["path"] for chunk in obstore.list(bucket, prefix) for one in chunk]
        return {path.removeprefix(prefix): bytes(obstore.get(bucket, path).bytes()) for path in paths}

    def empty(self) -> None:
        """Removes all objects and ends deny(); or starts the server, if it was killed."""
        if self._process.poll() is not None:
            return self.start()
        self._judge_after(math.inf)
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
        """Makes the server check each request's credentials from now on; it knows nobody's."""
        self._judge_after(0)

    def _judge_after(self, num_requests: float) -> None:
        answer = httpx.post(f"{self.url}/moto-api/reset-auth", content=str(num_requests).encode(), timeout=60)
        answer.raise_for_status()
