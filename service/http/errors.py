"""Converts errors to HTTP answers: has the table from error class to status, makes the body, and logs the error.

Source of the statuses: tensorflow_serving/model_servers/http_rest_api_util and util/net_http (9d981c5).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import orjson
from starlette.responses import Response

from service import errors
from service.errors import ServiceError

logger = logging.getLogger(__name__)

# HTTP status of each error class. A class does not inherit the status of its base class, so that somebody decides about
# each new class; a test checks that every class is listed.
HTTP_STATUS: Mapping[type[ServiceError], int] = {
    errors.ServiceError: 500,
    errors.InvalidRequest: 400,
    errors.MalformedPayload: 400,
    errors.InputMismatch: 400,
    errors.IdOutOfRange: 400,
    errors.IdsTooMany: 400,
    errors.UnknownOutput: 400,
    errors.LabelNotFound: 400,
    errors.UnfitSignature: 400,
    errors.GraphRefusal: 400,
    errors.PayloadTooLarge: 413,
    errors.NotFound: 404,
    errors.ModelNotFound: 404,
    errors.VersionNotFound: 404,
    errors.TableNotFound: 404,
    errors.RouteNotFound: 404,
    errors.SignatureNotFound: 400,
    errors.GraphUnavailable: 400,
    errors.DeltaRefused: 400,
    errors.NotReady: 503,
    errors.Overloaded: 503,
    errors.TableUnreachable: 503,
    errors.Unauthenticated: 401,
    errors.PermissionDenied: 403,
    errors.JournalUnavailable: 503,
    errors.DeadlineExceeded: 504,
    errors.ConfigConflict: 400,
    errors.ReloadFailed: 500,
    errors.Unimplemented: 501,
    errors.ArtifactError: 400,
    errors.DataLoss: 500,
    errors.BackendFailure: 500,
}
# Header of error answers with the canonical code, because several codes share a status: 400 is INVALID_ARGUMENT,
# FAILED_PRECONDITION and OUT_OF_RANGE.
CODE_HEADER = "X-Error-Code"
# Class of an error -> HTTP headers that only an answer with this error has.
ERROR_HEADERS: Mapping[type[ServiceError], Mapping[str, str]] = {
    errors.Overloaded: {"Retry-After": "1"},
    errors.Unauthenticated: {"WWW-Authenticate": "Bearer"},
}


# Maximal number of characters of an error text. The text may quote a value of the request, which may have megabytes.
_MAX_CHARACTERS = 4096


def error_response(
    status: int, text: str, headers: Mapping[str, str] | None = None, models: list[str] | None = None
) -> Response:
    # An error text may quote lone surrogates (half characters) of a request. They are replaced, because JSON text can
    # not hold them.
    told = {"error": text.encode("utf-8", "replace").decode()}
    body = orjson.dumps(told if models is None else {**told, "models": models})
    return Response(body, status, headers, media_type="application/json")


def service_error_response(error: ServiceError, request_id: str, models: list[str] | None = None) -> Response:
    """Logs an error and returns the HTTP response for it, with the names of the models that the caller may see.

    With status 500, the response has the request id, and only the log has the traceback.
    """
    status = HTTP_STATUS[type(error)]
    text = error.message
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}...TRUNCATED"
    extra = {"request_id": request_id, "status": status}
    if status == 500:
        logger.error("request failed: %s", text, extra=extra, exc_info=error)
        return error_response(status, f"{text} Request id: {request_id}", {CODE_HEADER: error.code})
    if isinstance(error, errors.Overloaded):
        # Refusals by overload are counted in metrics and not logged: there may be thousands a second, and a log line
        # costs more than a refusal.
        logger.debug("request refused: %s", ascii(text), extra=extra)
        return error_response(status, text, {CODE_HEADER: error.code, **ERROR_HEADERS[errors.Overloaded]})
    logger.log(logging.WARNING if status > 500 else logging.INFO, "request refused: %s", ascii(text), extra=extra)
    return error_response(status, text, {CODE_HEADER: error.code, **ERROR_HEADERS.get(type(error), {})}, models)


def unexpected_error_response(error: Exception, request_id: str) -> Response:
    logger.error("unexpected error", extra={"request_id": request_id, "status": 500}, exc_info=error)
    text = f"Internal error; the server's log has the cause, request id {request_id}"
    return error_response(500, text, {CODE_HEADER: ServiceError.code})
