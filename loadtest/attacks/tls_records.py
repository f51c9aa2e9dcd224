"""Makes records of TLS 1.3 that TLS libraries do not send, with keys from a handshake that such a library made."""

from __future__ import annotations

import hmac
import socket
import ssl
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

# Types of records. Source: RFC 8446, 5.1.
HANDSHAKE, DATA = 22, 23
_TAG_BYTES = 16


class Records:
    """Encoder of a client's encrypted records. Source: RFC 8446, 4.6.3, 5.2, 5.3, 7.1, 7.2 and 7.3.

    Args:
      suite: name of the cipher suite.
      secret: the first secret of the client's application data.
    """

    def __init__(self, suite: str, secret: bytes) -> None:
        self._hash = "sha384" if suite.endswith("SHA384") else "sha256"
        self._cipher = ChaCha20Poly1305 if "CHACHA20" in suite else AESGCM
        self._key_bytes = 16 if "AES_128" in suite else 32
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._iv = int.from_bytes(self._derived(b"iv", 12))
        self._key = self._cipher(self._derived(b"key", self._key_bytes))

    def _derived(self, label: bytes, size: int) -> bytes:
        """Derives bytes from the secret (HKDF-Expand-Label); at most as many as the hash has."""
        name = b"tls13 " + label
        data = size.to_bytes(2) + bytes([len(name)]) + name + b"\0\1"
        return hmac.digest(self._secret, data, self._hash)[:size]

    def record(self, kind: int, content: bytes, *, padding: int = 0) -> bytes:
        """Encodes one record; padding: number of zero bytes after its content."""
        plain = content + bytes([kind]) + bytes(padding)
        head = b"\x17\3\3" + (len(plain) + _TAG_BYTES).to_bytes(2)
        nonce = (self._iv ^ self._number).to_bytes(12)
        self._number += 1
        return head + self._key.encrypt(nonce, plain, head)

    def key_update(self) -> bytes:
        """Encodes a message that changes the client's keys and asks the server to change its own."""
        sent = self.record(HANDSHAKE, b"\x18\0\0\1\1")
        self._use(self._derived(b"traffic upd", 48 if self._hash == "sha384" else 32))
        return sent


def handshake(sock: socket.socket, protocol: str) -> Records:
    """Makes a TLS 1.3 handshake on a socket that blocks; returns the encoder of the client's records.

    Args:
      protocol: offered by ALPN.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "keys"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([protocol])
        context.keylog_filename = str(log)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)
        is_done = False
        while not is_done:
            try:
                tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            sock.sendall(outgoing.read())
            if not is_done and not incoming.write(sock.recv(1 << 16)):
                raise ConnectionError("the server closed in the handshake")
        cipher = tls.cipher()
        assert cipher is not None
        (line,) = [line for line in log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
        return Records(cipher[0], bytes.fromhex(line.split()[2]))
