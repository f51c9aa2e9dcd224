"""Declares the description of a client's request: Call when it arrives, Finished when it has ended, for an Observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """The description of a request that HTTP or gRPC gives the engine: labels for metrics, arrival and deadline.

    api: the label for metrics, such as "http" or "grpc".
    method: the label for metrics, spelt as HTTP or gRPC spells the method.
    started_s: when the request arrived; None: it has just arrived.
    deadline_s: the engine begins no work after this time; None: the request has no deadline.
    """

    api: str
    method: str = ""
    started_s: float | None = None
    deadline_s: float | None = None


class Subject(NamedTuple):
    """The labels under which metrics count a request: API, method, model, version and signature.

    model, signature: "" if no model or signature of the requested name exists, so that labels stay bounded.
    version: None where no version was found.
    """

    api: str
    method: str
    model: str
    version: int | None
    signature: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The result and the times of a request that has ended, for metrics.

    error: None: the request succeeded.
    run_seconds: the part of seconds that the search took.
    """

    subject: Subject
    error: BaseException | None
    seconds: float
    run_seconds: float
    rows: int


class Observer(Protocol):
    """The observer that counts finished requests. Concurrency: any thread; must not raise."""

    def finished(self, request: Finished) -> None:
        """Counts a request that has ended, with an answer or with an error."""
        ...
