"""Declares every error that a client can get, each with one canonical code of google.rpc.Code.

ServiceError
  InvalidRequest        INVALID_ARGUMENT     MalformedPayload  InputMismatch  IdOutOfRange  IdsTooMany  UnknownOutput
                                             LabelNotFound
                                             UnfitSignature  GraphRefusal
  PayloadTooLarge       RESOURCE_EXHAUSTED
  NotFound              NOT_FOUND            ModelNotFound  VersionNotFound  TableNotFound  RouteNotFound
  SignatureNotFound     FAILED_PRECONDITION  as TensorFlow Serving answers
  GraphUnavailable      FAILED_PRECONDITION  a predict signature on a server without TensorFlow
  DeltaRefused          FAILED_PRECONDITION  rows of this version can not be changed as it is served here
  NotReady              UNAVAILABLE          loading, draining, or the last load failed
  TableUnreachable      UNAVAILABLE          rows of a table in a cluster could not be read; another try may succeed
  Overloaded            UNAVAILABLE          too much in flight; the same request may succeed later
  Unauthenticated       UNAUTHENTICATED      no valid credentials were sent, and the server requires some
  PermissionDenied      PERMISSION_DENIED    a known caller, without the right to do this
  JournalUnavailable    UNAVAILABLE          an upsert could not be put on disk; nothing was changed
  DeadlineExceeded      DEADLINE_EXCEEDED
  ConfigConflict        FAILED_PRECONDITION  a new list of models does not fit what is loaded
  ReloadFailed          UNKNOWN              a new list of models has a model that does not load
  Unimplemented         UNIMPLEMENTED        a method of TensorFlow Serving's API that is not served
  ArtifactError         FAILED_PRECONDITION  at load only: ends as version state END, never reaches a data request
  DataLoss              DATA_LOSS            the version's files were damaged while it was served
  BackendFailure        INTERNAL             the cause is logged with the request id and hidden from the client

Transports map classes and codes to their own numbers; this file knows neither HTTP nor gRPC. An error's message names
the input, what the client sent and what was expected, in the client's terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import ClassVar, Literal

Code = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "DEADLINE_EXCEEDED",
    "UNKNOWN",
    "UNIMPLEMENTED",
    "INTERNAL",
    "DATA_LOSS",
]


class ServiceError(Exception):
    """Base class of all errors that a client can get; only its subclasses are raised."""

    code: ClassVar[Code] = "INTERNAL"

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidRequest(ServiceError):
    """The request is invalid: it can never succeed as it was sent."""

    code = "INVALID_ARGUMENT"


class MalformedPayload(InvalidRequest):
    """The request's bytes can not be parsed as the JSON document or protobuf message that they should be."""


class InputMismatch(InvalidRequest):
    """The names, dtypes, ranks or numbers of rows of a request's inputs do not fit the signature."""


class IdOutOfRange(InvalidRequest):
    """An id or a string of the request has no row in its table, and no policy replaces or drops it."""


class IdsTooMany(InvalidRequest):
    """A row has more than max_ids_per_row ids, or a request has more rows or ids than a limit."""


class UnknownOutput(InvalidRequest):
    """The request's output filter names an output that the signature does not have."""


class LabelNotFound(InvalidRequest):
    """The model has no version label of the requested name."""


class UnfitSignature(InvalidRequest):
    """The request's method, such as Classify, can not run the signature, whose inputs or outputs do not fit it."""


class GraphRefusal(InvalidRequest):
    """The signature's graph refused the request's inputs; the message begins with TensorFlow's text."""


class PayloadTooLarge(ServiceError):
    """The request needs more memory than there is, or is over a limit: on bytes of its body or answer, on rows, or on
    JSON keys or lists.
    """

    code = "RESOURCE_EXHAUSTED"


class NotFound(ServiceError):
    """The request names a model, version, table, health service or HTTP path that this server does not have."""

    code = "NOT_FOUND"


class ModelNotFound(NotFound):
    """The server has no model of the requested name."""


class VersionNotFound(NotFound):
    """The model is served, but not the requested version of it."""


class TableNotFound(NotFound):
    """The model has no table of the requested name."""


class RouteNotFound(NotFound):
    """The server has no route for the request's HTTP path."""


class SignatureNotFound(ServiceError):
    """The model has no signature of the requested name."""

    code = "FAILED_PRECONDITION"

    def __init__(self, text: str, near: str = "") -> None:
        # near: the end of an error text, which suggests a signature with a similar name, or lists all; "" without any.
        super().__init__(text)
        self.near = near


class GraphUnavailable(ServiceError):
    """The signature needs TensorFlow, and this server runs without TensorFlow."""

    code = "FAILED_PRECONDITION"


class DeltaRefused(ServiceError):
    """Rows of this version can not be changed: there is no journal, or a signature would still return the old rows."""

    code = "FAILED_PRECONDITION"


class NotReady(ServiceError):
    """The model has no version that can answer now: all are loading or failed to load, or the server shuts down."""

    code = "UNAVAILABLE"


class TableUnreachable(ServiceError):
    """Rows of a remote table could not be read from the table's cluster, or could not be changed in it."""

    code = "UNAVAILABLE"


class Overloaded(ServiceError):
    """The server refuses the request, because it has reached a limit on the requests that run or wait."""

    code = "UNAVAILABLE"


class Unauthenticated(ServiceError):
    """The request has no credentials, or unknown ones; the message does not say which of the two."""

    code = "UNAUTHENTICATED"


class PermissionDenied(ServiceError):
    """The caller is known, but lacks the right for this request."""

    code = "PERMISSION_DENIED"


class JournalUnavailable(ServiceError):
    """The journal of upserts can not be written, so no row was changed."""

    code = "UNAVAILABLE"


class DeadlineExceeded(ServiceError):
    """The deadline of the client's request passed before the answer was ready."""

    code = "DEADLINE_EXCEEDED"


class ConfigConflict(ServiceError):
    """A new list of models is well formed, but contradicts the models that are served now."""

    code = "FAILED_PRECONDITION"


class ReloadFailed(ServiceError):
    """A model of a new list did not load, so the list of models is unchanged."""

    code = "UNKNOWN"


class Unimplemented(ServiceError):
    """This server does not support the requested method, or this use of it."""

    code = "UNIMPLEMENTED"


class ArtifactError(ServiceError):
    """A version folder is incomplete, corrupt or of a newer format; the message names the file."""

    code = "FAILED_PRECONDITION"


class DataLoss(ServiceError):
    """Files of this version are damaged or were changed, so it is not served; the model may soon serve another one."""

    code = "DATA_LOSS"


class BackendFailure(ServiceError):
    """The server failed to run a valid request."""

    code = "INTERNAL"


@contextmanager
def os_errors_as(kind: type[Exception], what: str) -> Iterator[None]:
    """Raises an OSError of the body as another error, whose text is `what`, a colon and the system's reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


def id_out_of_range(input_name: str, bad_id: int, position: int, vocabulary_size: int) -> IdOutOfRange:
    """Returns the error for an id that has no row in its table; lookups and predicts use the same text."""
    return IdOutOfRange(
        f'input "{input_name}": id {bad_id} at position {position} is out of range, '
        f"its table has ids 0 to {vocabulary_size - 1}."
    )


# Least similarity of a suggested name: higher than difflib's default 0.6, because names of settings share prefixes and
# would all look similar.
_CUTOFF = 0.75
# Limits on the work for a suggestion: comparing names takes time in proportion to the product of their lengths, and
# clients choose the name.
_MAX_NAMES, _MAX_LENGTH = 200, 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error text, which suggests the most similar known name; "" if no name is similar.

    It compares no name of more than 100 characters, and nothing with more than 200 known names.

    >>> did_you_mean("Tabels", ["tables", "features"])
    '; did you mean tables?'
    >>> did_you_mean("x", ["tables", "features"])
    ''
    """
    spelt = {each.lower(): each for each in known}
    if len(name) > _MAX_LENGTH or len(spelt) > _MAX_NAMES:
        return ""
    near = get_close_matches(name.lower(), spelt, 1, _CUTOFF)
    return f"; did you mean {spelt[near[0]]}?" if near else ""


# Most names that a text lists, as in native/src/plan/faults.rs.
_MAX_LISTED = 10


def listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    return ", ".join([*names[:_MAX_LISTED], *more])


def models_told(names: Sequence[str]) -> str:
    """Returns the end of an error text, which names the models that the caller may see.

    >>> models_told(["films", "users"]), models_told([])
    ('; models: films, users', '; no model is served here')
    """
    return f"; models: {listed(names)}" if names else "; no model is served here"
