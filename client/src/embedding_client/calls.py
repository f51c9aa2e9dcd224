"""Describes a request as data (a Call), so that gRPC and HTTP, blocking and asyncio clients differ only in sending."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from embedding_client.errors import ServerFault, invalid
from embedding_client.inputs import Ids
from embedding_client.types import Array, ModelMetadata, Neighbors, Outputs, TableDescription, VersionStatus

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Where(NamedTuple):
    """The model version that a request asks for: a number, a label, or the latest version if both are None."""

    version: int | None = None
    label: str | None = None


def where(version: int | None, label: str | None) -> Where:
    """Makes a `Where`, the version that a request asks for, of a number or a label.

    Raises:
      InvalidRequest: both were given, or the version is no integer.
    """
    if version is not None and not hasattr(version, "__index__"):
        raise invalid(f"version is {version!r}: expected an integer; a name such as 'stable' is a label.")
    if version is not None and label is not None:
        raise invalid(f"version {version} and label {label!r} were both given; send one or the other.")
    return Where(version, label)


class Reply(NamedTuple):
    """The answer to a request that succeeded.

    version: the model version that answered, if a response header names it; else None.
    json_length: the length of the JSON before binary tensors; None: the answer has no binary tensors.
    """

    body: bytes
    version: int | None = None
    json_length: int | None = None


class Call(NamedTuple, Generic[T]):
    """One request to the server, ready to be sent over gRPC or HTTP.

    path: of the gRPC method, or of the URL.
    body: the request's bytes; None sends an HTTP GET.
    decode: makes the result from the Reply.
    json_length: the length of the JSON before the body's binary tensors; None: the body is one text or message.
    metadata: gRPC metadata of this call.
    """

    path: str
    body: bytes | None
    decode: Callable[[Reply], T]
    json_length: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    def read(self, reply: Reply) -> T:
        """Decodes the server's reply to this request; raises ServerFault if the reply breaks the protocol."""
        try:
            return self.decode(reply)
        except (LookupError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ServerFault("INTERNAL", f"The server's answer to {self.path} can not be read: {error}") from error


# The type of a client method as a generator: it yields each Call that must be sent, receives its decoded reply or its
# EmbeddingError, and returns the method's result.
Flow = Generator[Call[Any], Any, R_co]


class Calls(Protocol):
    """The interface of the client's methods as generators of `Call`s, over gRPC or HTTP. Concurrency: any thread."""

    def lookup(self, ids: Mapping[str, Ids], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Returns the generator of `Call`s (requests) that looks up ids; its result is embeddings by output name."""
        ...

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], at: Where, signature: str) -> Flow[Outputs]:
        """Returns the generator of `Call`s (requests) that runs any signature; its result is the outputs by name."""
        ...

    def tables(self, at: Where) -> Flow[tuple[TableDescription, ...]]:
        """Returns the generator of `Call`s (requests) that lists the model's embedding tables."""
        ...

    def rows(self, table: str, ids: Array, at: Where) -> Flow[Array]:
        """Returns the generator of `Call`s (requests) that reads rows of a table; its result is [N, D] float32."""
        ...

    def neighbors(self, search: Mapping[str, Array], at: Where) -> Flow[Neighbors]:
        """Returns the generator of Calls that searches a table for nearest rows.

        Args:
          search: the inputs of the gRPC signature "neighbors", by name.
        """
        ...

    def status(self, version: int | None) -> Flow[tuple[VersionStatus, ...]]:
        """Returns the generator of `Call`s (requests) for the states of one version, or of all if `version` is None."""
        ...

    def metadata(self, at: Where) -> Flow[ModelMetadata]:
        """Returns the generator of `Call`s (requests) for a version's signatures, with their inputs and outputs."""
        ...
