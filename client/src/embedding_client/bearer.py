"""Makes the Authorization header of a request from a bearer token."""

from __future__ import annotations

import re
from collections.abc import Callable

# No spaces and no line ends: a token must not end its header and begin another.
_TOKEN = re.compile(r"[!-~]+")

Token = str | Callable[[], str] | None


class Bearer:
    """The token of a client. Concurrency: any thread, if the callable is.

    Args:
      token: the token, or a callable that returns it for each request; None: no token is sent.

    Raises:
      ValueError: the string is no token; the message does not show it.
    """

    __slots__ = ("_token", "_value")

    def __init__(self, token: Token) -> None:
        self._token = token
        self._value = _value(token) if isinstance(token, str) else None

    def value(self) -> str | None:
        """Returns the value of the Authorization header; None if there is no token."""
        if self._value is not None or self._token is None:
            return self._value
        assert callable(self._token)
        return _value(self._token())

    def headers(self, others: dict[str, str]) -> dict[str, str]:
        """Returns headers, with the Authorization header if there is a token."""
        value = self.value()
        return others if value is None else {**others, "Authorization": value}

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """Returns gRPC's metadata with the token; None if there is no token."""
        value = self.value()
        return None if value is None else (("authorization", value),)


def _value(token: str) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError("token: expected printable ASCII without spaces")
    return f"Bearer {token}"


NO_TOKEN = Bearer(None)
