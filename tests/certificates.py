"""Makes certificate authorities and certificates for tests, with a library that the server does not use."""

from __future__ import annotations

import datetime
import ipaddress
import json
from dataclasses import dataclass
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Issued:
    """A private key and its certificate, both as PEM text."""

    key: str
    cert: str

    @cached_property
    def serial(self) -> int:
        """The certificate's serial number."""
        return x509.load_pem_x509_certificate(self.cert.encode()).serial_number


class Authority:
    """A certificate authority, which signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key.public_key(), _tomorrow())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = _pem(builder.sign(self._key, hashes.SHA256()))

    @property
    def own(self) -> Issued:
        """The authority's own key and certificate, which it signed itself."""
        return Issued(key_pem(self._key), self.pem)

    def issue(self, name: str = "localhost", ends: datetime.datetime | None = None) -> Issued:
        """Signs a certificate for a name and for the address 127.0.0.1, and returns it with its private key.

        Args:
          ends: end of validity; None: in a day.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key.public_key(), ends or _tomorrow())
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Issued(key_pem(key), _pem(builder.sign(self._key, hashes.SHA256())))


def ssl_config(issued: Issued, authority: Authority | None = None) -> str:
    """Returns an SSLConfig as text. With an authority, clients must show a certificate that the authority signed."""
    lines = [f"server_key: {json.dumps(issued.key)}", f"server_cert: {json.dumps(issued.cert)}"]
    if authority is not None:
        lines += [f"custom_ca: {json.dumps(authority.pem)}", "client_verify: true"]
    return "\n".join(lines) + "\n"


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> str:
    """Encodes a private key as PEM text."""
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how).decode()


def _tomorrow() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime.datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    begins = min(LONG_AGO, ends - datetime.timedelta(days=1))
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
