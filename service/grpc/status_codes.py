"""Maps canonical codes to grpc.StatusCode, and shortens error texts for gRPC.

Source of the limit: tensorflow_serving/model_servers/grpc_status_util.cc (9d981c5).
"""

from __future__ import annotations

from typing import get_args

import grpc

from service.errors import Code

STATUS_CODES: dict[str, grpc.StatusCode] = {code: grpc.StatusCode[code] for code in get_args(Code)}

_MAX_DETAIL_BYTES = 1024
_CUT_MARK = "...TRUNCATED"


def details(text: str) -> str:
    """Returns an error text as valid UTF-8 of at most 1024 bytes, followed by "...TRUNCATED" if it was longer.

    >>> details("x" * 2000)[1020:]
    'xxxx...TRUNCATED'
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= _MAX_DETAIL_BYTES:
        return data.decode()
    return data[:_MAX_DETAIL_BYTES].decode("utf-8", "ignore") + _CUT_MARK
