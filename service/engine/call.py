"""Describes one request of a client: how it came in, and, at its end, what it was for and how it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from service.types import SignatureKind


@dataclass(frozen=True, slots=True)
class Call:
    """A client's request as its wire hands it to the engine, with times on the engine's clock.

    api: the wire's name in metrics, such as "http" or "grpc".
    method: the method's name in metrics, spelt as on that wire.
    started_s: when the request arrived; None: when its signature is bound.
    deadline_s: the engine begins no work after this time; None: the request has no deadline.
    """

    api: str
    method: str = ""
    started_s: float | None = None
    deadline_s: float | None = None


class Subject(NamedTuple):
    """The labels of a request in metrics.

    model, signature: "" where the request named none that exists, so labels stay bounded.
    version: None where no version was bound.
    """

    api: str
    method: str
    model: str
    version: int | None
    signature: str


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished request.

    kind: tells whether a graph ran.
    error: None: the request succeeded.
    run_seconds: the part of seconds that the backend took.
    """

    subject: Subject
    kind: SignatureKind
    error: BaseException | None
    seconds: float
    run_seconds: float
    rows: int
