"""Makes an ssl.SSLContext from an SSLConfig; error texts explain faults of certificate or key, and quote no key."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from service.access.certificates import first_end_s
from service.errors import InvalidRequest
from service.wire.ssl_config_proto import SslConfig

# The allowed cipher suites of TLS 1.2: all have forward secrecy, and none is on the list of weak suites in RFC 9113,
# appendix A. TLS 1.3 has no weak suites.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


def create_context(config: SslConfig, protocols: Sequence[str]) -> ssl.SSLContext:
    """Returns the ssl.SSLContext for a port's connections, with the key and the certificate of an SSLConfig.

    Args:
      protocols: protocols that ALPN offers.

    Raises:
      InvalidRequest: a part of the config is missing or broken, or its key and certificate do not belong together.
    """
    _check(config)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    # Python's ssl reads certificates and keys from files only; a file in memory keeps the private key off the disk.
    with _in_memory(config.server_cert) as cert_file, _in_memory(config.server_key) as key_file:
        try:
            context.load_cert_chain(cert_file, key_file, password=_no_password)
        except ssl.SSLError as error:
            raise InvalidRequest(_why_not(error)) from None
    if config.client_verify:
        _trust(context, config.custom_ca, "custom_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check(config: SslConfig) -> None:
    for name in ("server_key", "server_cert"):
        if not getattr(config, name).strip():
            raise InvalidRequest(f"{name} is missing")
    if config.client_verify and not config.custom_ca.strip():
        raise InvalidRequest("client_verify needs custom_ca: the authorities that sign clients' certificates")
    try:
        first_end_s(config.server_cert)
    except ValueError:
        raise InvalidRequest(_no_certificate("server_cert")) from None
    scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _trust(scratch, config.server_cert, "server_cert")
    if config.custom_ca:
        # custom_ca is checked even if client_verify is off: an operator shall learn of a faulty custom_ca before
        # switching client_verify on.
        _trust(scratch, config.custom_ca, "custom_ca")


def _trust(context: ssl.SSLContext, pem: str, name: str) -> None:
    try:
        # Characters outside ASCII are dropped: people write comments between certificates, and ssl refuses such
        # characters.
        context.load_verify_locations(cadata=pem.encode("ascii", "ignore").decode())
    except (ssl.SSLError, ValueError):
        raise InvalidRequest(_no_certificate(name)) from None


def _no_certificate(name: str) -> str:
    return f"{name} is not the text of a certificate (PEM), or is damaged"


def _why_not(error: ssl.SSLError) -> str:
    # OpenSSL refused server_cert and server_key for one of three reasons: the key is unreadable, the key is not that of
    # the certificate, or the certificate is too weak. _check() has refused an unreadable certificate before.
    reason = error.reason or ""
    if reason in _MISMATCHES:
        return "server_key does not belong to server_cert"
    if reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL"):
        return f"server_cert is too weak: {reason.lower().replace('_', ' ')}"
    return "server_key is not the text of a private key (PEM), or is damaged"


def _no_password() -> str:
    raise InvalidRequest("server_key is encrypted, and an SSLConfig has no password; give it decrypted")


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("pem")
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
