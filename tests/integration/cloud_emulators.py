"""Emulators of Google's and Azure's object stores, if their programs are installed.

Azurite is a package of npm, fake-gcs-server is a program in Go: neither can be a dependency of this project.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import httpx

from tests.integration.process import environment, until, unused_ports

BUCKET = "models"
# Every Azurite has this account with this key (Azurite's README, "Default Storage Account").
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Emulator:
    """A server process on a port of its own, ready with an empty bucket.

    command: its command line without the port's flag.
    """

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: self._process.poll() is not None or self._answers())
        assert self._process.poll() is None, f"{command[0]} can not start"

    def _answers(self) -> bool:
        try:
            httpx.get(self.url, timeout=60)
        except httpx.TransportError:
            return False
        return True

    def kill(self) -> None:
        """Ends the server at once; it forgets all objects."""
        self._process.kill()
        self._process.wait()


class Azurite(Emulator):
    """Microsoft's emulator of Azure's object store."""

    PROGRAM = "azurite-blob"
    SCHEME = "az"
    CAN_WRITE = True

    def __init__(self) -> None:
        (port,) = unused_ports(1)
        command = [
            self.PROGRAM,
            "--silent",
            "--skipApiVersionCheck",
            "--inMemoryPersistence",
            "--blobHost",
            "127.0.0.1",
        ]
        super().__init__([*command, "--blobPort", str(port)], port)
        self._ask("PUT", f"{BUCKET}?restype=container", "restype:container").raise_for_status()

    def put(self, key: str, data: bytes) -> None:
        """Uploads an object."""
        headers = {"x-ms-blob-type": "BlockBlob"}
        self._ask("PUT", f"{BUCKET}/{quote(key)}", "", data=data, headers=headers).raise_for_status()

    def variables(self, url: str, folder: Path, *, secret: str = _KEY) -> dict[str, str]:
        """Returns the environment variables by which servers find the store at a URL."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": secret,
            "AZURE_STORAGE_ENDPOINT": f"{url}/{_ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def wrong_variables(self, url: str, folder: Path) -> dict[str, str]:
        """Returns the variables with a wrong key for the account."""
        return self.variables(url, folder, secret=base64.b64encode(b"very-secret-and-wrong").decode())

    def _ask(
        self, method: str, place: str, query: str, *, data: bytes = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Sends a request signed with the shared key. Source: Authorize with Shared Key, Azure's REST reference."""
        sent = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"} | (headers or {})
        canonical = "".join(f"{name}:{value}\n" for name, value in sorted(sent.items()))
        path = f"/{_ACCOUNT}/{_ACCOUNT}/{place.partition('?')[0]}"
        text = "\n".join(
            [method, "", "", str(len(data) or ""), *[""] * 8, canonical + path, *([query] if query else [])]
        )
        signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()).decode()
        sent["authorization"] = f"SharedKey {_ACCOUNT}:{signature}"
        return httpx.request(method, f"{self.url}/{_ACCOUNT}/{place}", content=data, headers=sent, timeout=60)


class FakeGcsServer(Emulator):
    """An emulator of Google's object store; its XML interface answers reads, and refuses writes."""

    PROGRAM = "fake-gcs-server"
    SCHEME = "gs"
    CAN_WRITE = False

    def __init__(self) -> None:
        (port,) = unused_ports(1)
        command = [self.PROGRAM, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        super().__init__([*command, "-public-host", f"127.0.0.1:{port}"], port)
        httpx.post(f"{self.url}/storage/v1/b?project=test", json={"name": BUCKET}, timeout=60).raise_for_status()

    def put(self, key: str, data: bytes) -> None:
        """Uploads an object through the JSON interface."""
        query = {"uploadType": "media", "name": key}
        httpx.post(
            f"{self.url}/upload/storage/v1/b/{BUCKET}/o", params=query, content=data, timeout=60
        ).raise_for_status()

    def variables(self, url: str, folder: Path) -> dict[str, str]:
        """Returns the environment variables by which servers find the store at a URL; writes an account's file."""
        account = folder / "account.json"
        keys = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        account.write_text(json.dumps({"gcs_base_url": url} | keys))
        return {"GOOGLE_SERVICE_ACCOUNT": str(account), "GOOGLE_ALLOW_HTTP": "true"}

    def wrong_variables(self, url: str, folder: Path) -> dict[str, str]:
        """Returns variables that lead to an account's file with a key that can not sign."""
        account = folder / "wrong.json"
        keys = {"client_email": "a@b.c", "private_key": "very-secret-and-wrong", "private_key_id": "1"}
        account.write_text(json.dumps({"gcs_base_url": url} | keys))
        return {"GOOGLE_SERVICE_ACCOUNT": str(account), "GOOGLE_ALLOW_HTTP": "true"}


EMULATORS = (Azurite, FakeGcsServer)


def is_installed(emulator: type[Azurite] | type[FakeGcsServer]) -> bool:
    """Says whether the emulator's program is on PATH."""
    return shutil.which(emulator.PROGRAM) is not None
