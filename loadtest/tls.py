"""Makes a certificate for a server under test, and contexts of clients that do not check it."""

from __future__ import annotations

import functools
import json
import shutil
import ssl
import subprocess
from pathlib import Path


def write_ssl_config(folder: Path) -> Path | None:
    """Writes an SSLConfig with a new certificate into a folder; returns its path, or None without openssl."""
    if not shutil.which("openssl"):
        return None
    key, certificate = folder / "key.pem", folder / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    config = folder / "ssl.conf"
    names = {"server_key": key, "server_cert": certificate}
    config.write_text("".join(f"{name}: {json.dumps(file.read_text())}\n" for name, file in names.items()))
    return config


def server_flags(config: Path) -> list[str]:
    """Returns the flags with which a server of this project uses an SSLConfig on both its ports."""
    return [f"--ssl_config_file={config}", f"--rest_api_ssl_config_file={config}"]


@functools.cache
def client_context(*protocols: str) -> ssl.SSLContext:
    """Returns a client's TLS context that accepts any certificate and offers these protocols by ALPN."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
