"""A call as data, between what is asked (grpc_calls, http_calls) and how it travels (the transports)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from service.client.answers import ModelMetadata
from service.client.errors import ServerFault, invalid
from service.client.inputs import Ids
from service.core.errors import ServiceError
from service.core.types import Array, VersionStatus

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Where(NamedTuple):
    """Which version: a number, a label, or with neither the latest."""

    version: int | None = None
    label: str | None = None


def where(version: int | None, label: str | None) -> Where:
    """Checks and returns the two; raises InvalidRequest where both are given."""
    if version is not None and label is not None:
        raise invalid(f"version {version} and label {label!r} were both given; send one or the other.")
    return Where(version, label)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    path: the method's path, or the URL's.
    body: what is sent; None is a GET.
    decode: answer's bytes to what they say.
    """

    path: str
    body: bytes | None
    decode: Callable[[bytes], T]

    def read(self, data: bytes) -> T:
        """Returns decode(data); raises ServerFault where the answer is not what the protocol promises."""
        try:
            return self.decode(data)
        except (ServiceError, DecodeError, LookupError, AttributeError, TypeError, ValueError) as error:
            raise ServerFault("INTERNAL", f"The server's answer to {self.path} can not be read: {error}") from error


# What a method needs may be more than one call: it yields each, is sent its answer, and returns its own.
Flow = Generator[Call[Any], Any, R_co]
Arrays = dict[str, Array]


class Calls(Protocol):
    """The methods of one wire. Concurrency: any thread."""

    def lookup(self, ids: Mapping[str, Ids], outputs: Sequence[str], at: Where, signature: str) -> Flow[Arrays]:
        """Asks for combined embeddings."""
        ...

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Flow[Arrays]:
        """Runs any signature."""
        ...

    def rows(self, table: str, ids: Array, at: Where) -> Flow[Array]:
        """Asks for a table's rows."""
        ...

    def status(self, version: int | None) -> Flow[tuple[VersionStatus, ...]]:
        """Asks for the states of versions."""
        ...

    def metadata(self, at: Where) -> Flow[ModelMetadata]:
        """Asks for the signatures."""
        ...
