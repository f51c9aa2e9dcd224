"""The routes that lookups come by, for requests that are plain: what they ask and what they are answered, whole.

FastAPI has the same routes and answers the same; what is unusual in any way is left to it, and so is every error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from service.core import request_context
from service.core.types import ModelRef
from service.transports.http.cors import CORS_HEADERS
from service.transports.http.request_id import RequestIds

logger = logging.getLogger(__name__)

# Binary tensors are not parsed, so larger bodies than of JSON are a matter of microseconds.
INLINE_BINARY_BYTES = 1 << 20
_PATH = re.compile(
    rb"/v1/models/(?P<model>[\w.-]+)(?:/versions/(?P<version>\d{1,18})|/labels/(?P<label>[\w.-]+))?"
    rb":(?P<method>lookup|predict)"
    rb"|/v2/models/(?P<model_2>[\w.-]+)(?:/versions/(?P<version_2>\d{1,18}))?/infer"
)
_INFER, _LOOKUP = "infer", "lookup"
# Paths that are remembered, and how long they may be.
_MAX_PATHS, _MAX_PATH_BYTES = 1024, 512
# Headers that are looked at; the last ones ask for something which the general path does.
_READ = frozenset(
    {
        *(b"content-length", b"accept-encoding", b"inference-header-content-length", b"x-request-id"),
        b"traceparent",
        *(b"content-encoding", b"expect", b"upgrade", b"transfer-encoding"),
    }
)
_NO_LENGTH = 1 << 63
_JSON, _OCTETS = b"content-type: application/json\r\n", b"content-type: application/octet-stream\r\n"

# Alone in Accept-Encoding: an answer of tensors is compressed whatever its size.
_CODINGS = (b"gzip", b"deflate")

Headers = Sequence[tuple[bytes, bytes]]


class Infer(Protocol):
    """A body that is JSON first, and how much of it is JSON."""

    @property
    def body(self) -> bytes: ...

    @property
    def header_length(self) -> int: ...


class Directly(Protocol):
    """Answers plain lookups; None: the general path must read, answer, refuse and count the request."""

    def lookup(self, ref: ModelRef, body: bytes, started_s: float) -> bytes | None:
        """Returns the body of a :lookup's answer."""
        ...

    def predict(self, ref: ModelRef, body: bytes, started_s: float) -> bytes | None:
        """Returns the body of a :predict's answer."""
        ...

    def infer(self, ref: ModelRef, header_length: str, body: bytes, started_s: float) -> Infer | None:
        """Returns the answer to an inference request."""
        ...


class Target(NamedTuple):
    """What a path is for."""

    ref: ModelRef
    method: str


class Asked(NamedTuple):
    """A request whose body is still to come.

    header_length: of an inference request, the header that says how long its JSON is.
    request_id: as the client has it, or its trace's, b"" where it has none.
    traceparent: b"" where there is none.
    max_bytes: of the body, beyond which the general path takes it.
    accepts_coding: the answer may be compressed.
    """

    target: Target
    header_length: str
    request_id: bytes
    traceparent: bytes
    max_bytes: int
    accepts_coding: bool


class Answer(NamedTuple):
    """A 200: the headers of its body, without its length; those that every answer has; and its body."""

    content: bytes
    marks: bytes
    body: bytes

    @property
    def head(self) -> bytes:
        """All headers, as HTTP/1.1 writes them."""
        return b"content-length: %d\r\n%b%b" % (len(self.body), self.content, self.marks)


class HotAnswers:
    """Answers plain requests. Concurrency: event loop only.

    Args:
      clock: the engine's.
      max_json_bytes, max_binary_bytes: of bodies that are answered where they arrive.
      gzip_min_bytes, has_cors: as in create_http_app.
      share_of: the engine's.
      origins_matter: what pages of other origins send is left to the general path.
    """

    def __init__(
        self,
        directly: Directly,
        ids: RequestIds,
        clock: Callable[[], float],
        *,
        max_json_bytes: int,
        max_binary_bytes: int,
        gzip_min_bytes: int,
        has_cors: bool,
        share_of: Callable[[str], str] = str,
        origins_matter: bool = False,
    ) -> None:
        self._directly = directly
        self._ids = ids
        self._clock = clock
        self._max_json_bytes = max_json_bytes
        self._max_binary_bytes = max_binary_bytes
        self.gzip_min_bytes = gzip_min_bytes
        self._cors = b"".join(b"%b: %b\r\n" % header for header in CORS_HEADERS) if has_cors else b""
        self._share_of = share_of
        self._looked_at = _READ | {b"origin"} if origins_matter else _READ
        self._targets: dict[bytes, Target | None] = {}

    def ask(self, path: bytes, headers: Headers) -> Asked | None:
        """Returns what a POST asks; None where the general path takes it.

        Args:
          path: as it was sent, without the query.
          headers: their names in lower case.
        """
        try:
            target = self._targets[path]
        except KeyError:
            target = self._read(path)
        if target is None:
            return None
        length, request_id, parent, accepts_coding, is_asked_for, declared = "", b"", b"", False, False, 0
        for name, value in headers:
            if name not in self._looked_at:
                continue
            if name == b"content-length":
                declared = int(value) if value.isdigit() and len(value) < 19 else _NO_LENGTH
            elif name == b"accept-encoding":
                accepted = value.strip().lower()
                accepts_coding |= b"gzip" in accepted
                is_asked_for |= accepted in _CODINGS
            elif name == b"inference-header-content-length":
                length = value.decode("latin-1")
            elif name == b"x-request-id":
                request_id = request_id or request_context.sane_id(value)
            elif name == b"traceparent":
                parent = value
            else:
                return None
        is_infer = target.method == _INFER
        max_bytes = self._max_binary_bytes if is_infer else self._max_json_bytes
        if declared > max_bytes or (is_infer and (is_asked_for or not length)):
            return None
        if parent:
            request_id = request_id or request_context.trace_id(parent)
        return Asked(target, length, request_id, parent, max_bytes, accepts_coding and self.gzip_min_bytes > 0)

    def share_of(self, asked: Asked) -> str:
        """Returns by which model a request is counted."""
        return self._share_of(asked.target.ref.name)

    def answer(self, asked: Asked, body: bytes) -> Answer | None:
        """Returns the answer; None where the general path takes the request."""
        started_s = self._clock()
        ref, method = asked.target
        own_id = asked.request_id or self._ids.next()
        # As request_context.enter does, without a call.
        request_context.request_id.set(own_id)
        request_context.traceparent.set(asked.traceparent)
        try:
            if method == _INFER:
                found = self._directly.infer(ref, asked.header_length, body, started_s)
                if found is None:
                    return None
                content = b"inference-header-content-length: %d\r\n" % found.header_length + _OCTETS
                return Answer(content, self._marks(own_id), found.body)
            directly = self._directly.lookup if method == _LOOKUP else self._directly.predict
            data = directly(ref, body, started_s)
        except Exception:
            logger.exception("the direct path failed; the general one answers")
            return None
        return None if data is None else Answer(_JSON, self._marks(own_id), data)

    def _marks(self, own_id: bytes) -> bytes:
        return b"%bx-request-id: %b\r\n" % (self._cors, own_id)

    def compresses(self, asked: Asked, body: bytes) -> bool:
        """Whether an answer is to be compressed, if the client's Accept-Encoding says so."""
        return asked.accepts_coding and len(body) >= self.gzip_min_bytes

    def _read(self, path: bytes) -> Target | None:
        found = _PATH.fullmatch(path)
        target = None
        if found is not None:
            part = {name: value.decode() for name, value in found.groupdict().items() if value is not None}
            version = part.get("version") or part.get("version_2")
            name = part.get("model") or part.get("model_2") or ""
            ref = ModelRef(name, None if version is None else int(version), part.get("label"))
            target = Target(ref, part.get("method", _INFER))
        if len(self._targets) < _MAX_PATHS and len(path) <= _MAX_PATH_BYTES:
            self._targets[path] = target
        return target
