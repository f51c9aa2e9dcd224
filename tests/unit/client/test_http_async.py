"""What is said where httpx is missing; the rest needs a socket, see tests/integration/test_client.py."""

from __future__ import annotations

import sys

import pytest

from service.client.http_async import AsyncHttpTransport
from service.client.targets import parse_target


def test_without_httpx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ImportError, match=r"pip install 'embedding-server\[client\]'"):
        AsyncHttpTransport(parse_target("http://localhost:8501"))
