"""Every error a client can meet, each with one canonical code (names of google.rpc.Code).

ServiceError
  InvalidRequest        INVALID_ARGUMENT     MalformedPayload  InputMismatch  IdOutOfRange  IdsTooMany  UnknownOutput
                                             LabelNotFound
                                             UnfitSignature
  PayloadTooLarge       RESOURCE_EXHAUSTED
  NotFound              NOT_FOUND            ModelNotFound  VersionNotFound  TableNotFound  RouteNotFound
  SignatureNotFound     FAILED_PRECONDITION  as TensorFlow Serving answers
  GraphUnavailable      FAILED_PRECONDITION  a predict signature on a server without TensorFlow
  NotBatchable          FAILED_PRECONDITION  a batched signature answers what is not one row per row
  DeltaRefused          FAILED_PRECONDITION  rows of this version can not be changed as it is served here
  NotReady              UNAVAILABLE          loading, draining, or the last load failed
  TableUnreachable      UNAVAILABLE          rows of a table in a cluster could not be read; another try may succeed
  Overloaded            UNAVAILABLE          too much in flight; the same request may succeed later
  Unauthenticated       UNAUTHENTICATED      nobody that this server knows, where it wants to know
  PermissionDenied      PERMISSION_DENIED    somebody that it knows, who may not do this
  JournalUnavailable    UNAVAILABLE          an upsert could not be put on disk; nothing was changed
  DeadlineExceeded      DEADLINE_EXCEEDED
  ConfigConflict        FAILED_PRECONDITION  a new list of models does not fit what is loaded
  ReloadFailed          UNKNOWN              a new list of models names one that does not load; as TensorFlow Serving
  Unimplemented         UNIMPLEMENTED        what TensorFlow Serving's API names and nobody serves
  ArtifactError         FAILED_PRECONDITION  at load only: ends as version state END, never reaches a data request
  DataLoss              DATA_LOSS            the version's files were damaged while it was served
  BackendFailure        INTERNAL             the cause is logged with the request id and hidden from the client

Transports map classes and codes to their own numbers; this file knows neither HTTP nor gRPC. A message names the
input, what came and what was wanted, in the client's terms.
"""

from __future__ import annotations

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
    """Base of all; never raised itself."""

    code: ClassVar[Code] = "INTERNAL"

    @property
    def message(self) -> str:
        """The text a client sees."""
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidRequest(ServiceError):
    """The request can never succeed as it was sent."""

    code = "INVALID_ARGUMENT"


class MalformedPayload(InvalidRequest):
    """The bytes are not what the wire format asks for."""


class InputMismatch(InvalidRequest):
    """Names, dtypes, ranks or row counts differ from the signature's."""


class IdOutOfRange(InvalidRequest):
    """An id, or a string, has no row in its table."""


class IdsTooMany(InvalidRequest):
    """A row holds more ids than the padded lookup has room for, or a request more rows than its ladder."""


class UnknownOutput(InvalidRequest):
    """The output filter names what the signature does not give."""


class LabelNotFound(InvalidRequest):
    """The model has no such version label."""


class UnfitSignature(InvalidRequest):
    """The signature is missing or is not of the kind that the method needs."""


class PayloadTooLarge(ServiceError):
    """The body, or the answer that it asks for, is over the server's limit."""

    code = "RESOURCE_EXHAUSTED"


class NotFound(ServiceError):
    """The request names a model, version, label, table or signature that is not served here."""

    code = "NOT_FOUND"


class ModelNotFound(NotFound):
    """No model of that name."""


class VersionNotFound(NotFound):
    """The model is served, that version of it is not."""


class TableNotFound(NotFound):
    """The model has no such table."""


class RouteNotFound(NotFound):
    """No such path."""


class SignatureNotFound(ServiceError):
    """The model has no such signature."""

    code = "FAILED_PRECONDITION"


class GraphUnavailable(ServiceError):
    """The signature needs TensorFlow and this server runs without it."""

    code = "FAILED_PRECONDITION"


class NotBatchable(ServiceError):
    """An output of a batched run can not be told apart by request."""

    code = "FAILED_PRECONDITION"


class DeltaRefused(ServiceError):
    """Rows of this version can not be changed: there is no journal, or other readers would not see it."""

    code = "FAILED_PRECONDITION"


class NotReady(ServiceError):
    """The model is loading, draining, or failed to load."""

    code = "UNAVAILABLE"


class TableUnreachable(ServiceError):
    """Rows of a table that lies in a cluster could not be read."""

    code = "UNAVAILABLE"


class Overloaded(ServiceError):
    """The server holds as much work as it is allowed to."""

    code = "UNAVAILABLE"


class Unauthenticated(ServiceError):
    """No credentials came, or none that are known here; the message tells not which."""

    code = "UNAUTHENTICATED"


class PermissionDenied(ServiceError):
    """The caller is known, sees what it asks for, and may not do this with it."""

    code = "PERMISSION_DENIED"


class JournalUnavailable(ServiceError):
    """The journal of upserts can not be written; nothing was changed."""

    code = "UNAVAILABLE"


class DeadlineExceeded(ServiceError):
    """The client's deadline passed before the answer was ready."""

    code = "DEADLINE_EXCEEDED"


class ConfigConflict(ServiceError):
    """A list of models is well formed, and does not go with what is loaded now."""

    code = "FAILED_PRECONDITION"


class ReloadFailed(ServiceError):
    """A model that a reload would add did not become available; nothing was changed."""

    code = "UNKNOWN"


class Unimplemented(ServiceError):
    """The method, or this use of it, is served by no version of this server."""

    code = "UNIMPLEMENTED"


class ArtifactError(ServiceError):
    """A version folder is incomplete, corrupt or of a newer format; the message names the file."""

    code = "FAILED_PRECONDITION"


class DataLoss(ServiceError):
    """A version's files may differ from the exported ones; another version may answer soon."""

    code = "DATA_LOSS"


class BackendFailure(ServiceError):
    """A fault of ours while running a valid request."""

    code = "INTERNAL"
