"""Describes one request as data, so that both wires and both clients share all but the sending."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from embedding_client.errors import ServerFault, invalid
from embedding_client.inputs import Ids
from embedding_client.types import Array, ModelMetadata, Outputs, TableDescription, VersionStatus

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Where(NamedTuple):
    """The version that a request asks for: a number, a label, or the latest if it has neither."""

    version: int | None = None
    label: str | None = None


def where(version: int | None, label: str | None) -> Where:
    """Checks and returns the two; raises InvalidRequest if both are given."""
    if version is not None and label is not None:
        raise invalid(f"version {version} and label {label!r} were both given; send one or the other.")
    return Where(version, label)


class Reply(NamedTuple):
    """The answer to a request that succeeded.

    version: the version of the model that answered, if a header names it.
    """

    body: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    path: the method's path, or the URL's.
    body: the bytes to send; None is a GET.
    decode: reads the answer.
    """

    path: str
    body: bytes | None
    decode: Callable[[Reply], T]

    def read(self, reply: Reply) -> T:
        """Returns decode(reply); raises ServerFault if the answer is not what the protocol promises."""
        try:
            return self.decode(reply)
        except (LookupError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ServerFault("INTERNAL", f"The server's answer to {self.path} can not be read: {error}") from error


# A method may need more than one call: it yields each, is sent its decoded answer, and returns its own.
Flow = Generator[Call[Any], Any, R_co]


class Calls(Protocol):
    """The methods of one wire. Concurrency: any thread."""

    def lookup(self, ids: Mapping[str, Ids], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Asks for combined embeddings."""
        ...

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Runs any signature."""
        ...

    def tables(self, at: Where) -> Flow[tuple[TableDescription, ...]]:
        """Asks for the list of tables."""
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
