"""Makes the Authorization header of a request from a bearer token."""

from __future__ import annotations

import re
from collections.abc import Callable

# A token is printable ASCII without spaces: a line end in it could end the Authorization header and start another
# header.
_TOKEN = re.compile(r"[!-~]+")

Token = str | Callable[[], str] | None


class Bearer:
    """The bearer token that a client sends with each request. Concurrency: any thread, if a callable token allows it.

    Args:
      token: the token, or a callable that returns it for each request; None: no token is sent.

    Raises:
      ValueError: this can not be a token; the message does not show it.
    """

    __slots__ = ("_token", "_value")

    def __init__(self, token: Token) -> None:
        if not (token is None or isinstance(token, str) or callable(token)):
            raise ValueError(
                f"token is of type {type(token).__name__}: expected a string, or a function that returns it"
            )
        self._token = token
        self._value = _value(token) if isinstance(token, str) else None

    def value(self) -> str | None:
        """Returns the value of the Authorization header; None if the client has no token."""
        if self._value is not None or self._token is None:
            return self._value
        assert callable(self._token)
        return _value(self._token())

    def headers(self, others: dict[str, str]) -> dict[str, str]:
        """Returns the HTTP headers `others` plus the Authorization header; only `others` if the client has no token."""
        value = self.value()
        return others if value is None else {**others, "Authorization": value}

    def metadata(self, others: tuple[tuple[str, str], ...] = ()) -> tuple[tuple[str, str], ...]:
        """Returns the gRPC metadata `others`, and that which carries the bearer token."""
        value = self.value()
        return others if value is None else (*others, ("authorization", value))


def _value(token: str) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError("token: expected printable ASCII without spaces and line ends; strip() what a file has")
    return f"Bearer {token}"


NO_TOKEN = Bearer(None)
