"""Reads when certificates expire, by a small DER parser; OpenSSL reads all other fields of certificates.

Source: RFC 7468 (PEM), RFC 5280 section 4.1 (Certificate), ITU-T X.690 (DER).
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def first_end_s(pem: str) -> float:
    """Returns when the first of the certificates in a PEM text expires, in seconds since 1970.

    Raises:
      ValueError: the text has no certificate, or one that can not be parsed.
    """
    blocks = _PEM.findall(pem)
    if not blocks:
        raise ValueError("no certificate")
    return min(_end(binascii.a2b_base64(block)).timestamp() for block in blocks)


def _end(der: bytes) -> datetime:
    try:
        certificate, _ = _element(der, _SEQUENCE)
        rest, _ = _element(certificate, _SEQUENCE)
        if rest[0] == _VERSION:
            _, rest = _element(rest)
        # The loop skips three elements before the certificate's validity: serial number, signature algorithm, issuer.
        for _ in range(3):
            _, rest = _element(rest)
        validity, _ = _element(rest, _SEQUENCE)
        _, rest = _element(validity)
        kind = rest[0]
        text = _element(rest)[0].decode("ascii")
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("not a certificate") from error
    if kind == _UTC_TIME:
        # A date of DER's type UTCTime has only two digits of the year, which stand for 1950 to 2049.
        text = ("19" if text[:2] >= "50" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("not a certificate")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(data: bytes, expected: int | None = None) -> tuple[bytes, bytes]:
    """Returns the content of the first DER element in data, and the bytes of data behind it; raises ValueError."""
    kind, size, begin = data[0], data[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin], "big")
    if begin + size > len(data) or (expected is not None and kind != expected):
        raise ValueError("not a certificate")
    return data[begin : begin + size], data[begin + size :]
