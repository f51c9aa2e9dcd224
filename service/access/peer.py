"""Reads the names in a verified client certificate, and spells them the same for HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = {"DNS": "DNS", "URI": "URI", "IP Address": "IP", "email": "email"}
NO_NAMES: frozenset[str] = frozenset()


def names_of_certificate(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Returns the names in a certificate that Python's ssl has parsed, each with its kind, such as "DNS:a.example".

    >>> sorted(names_of_certificate({"subject": ((("commonName", "a"),),), "subjectAltName": (("DNS", "a.example"),)}))
    ['CN:a', 'DNS:a.example']
    """
    if not certificate:
        return NO_NAMES
    names = {f"CN:{value}" for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"}
    alternatives = certificate.get("subjectAltName", ())
    return frozenset(names | {f"{_KINDS[kind]}:{value}" for kind, value in alternatives if kind in _KINDS})


def names_of_transport(transport: asyncio.BaseTransport) -> frozenset[str]:
    """Returns the names in a client's verified certificate, from its connection; an empty set without a certificate."""
    # The names come from a verified certificate: Python and uvloop give a certificate's fields only after they have
    # verified its chain.
    return names_of_certificate(transport.get_extra_info("peercert"))


def names_of_auth_context(context: Mapping[str, Sequence[bytes]]) -> frozenset[str]:
    """Returns the names in a client's certificate that grpcio has verified.

    Source: grpc/grpc_security_constants.h of gRPC 1.85, the names of a verified peer's properties.
    """
    kinds = {"x509_common_name": "CN", "peer_dns": "DNS", "peer_uri": "URI", "peer_ip": "IP", "peer_email": "email"}
    return frozenset(
        f"{kind}:{value.decode('utf-8', 'replace')}" for key, kind in kinds.items() for value in context.get(key, ())
    )
