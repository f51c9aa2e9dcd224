"""Reads the text form of SSLConfig; no error message shows the file's content."""

from __future__ import annotations

import pytest

from service.errors import InvalidRequest
from service.wire.config_protos import SslConfig, parse_ssl_config_text

SECRET = "MIGHAgEAMBMGByqGSM49"


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (
            'server_key: "k\\n1"\nserver_cert: "c" "d"\ncustom_ca: \'a\'\nclient_verify: true\n',
            SslConfig("k\n1", "cd", "a", True),
        ),
        ('client_verify: false, server_key: "k"; # off', SslConfig("k", "")),
        ("", SslConfig("", "")),
    ],
)
def test_reads_the_text(text: str, config: SslConfig) -> None:
    assert parse_ssl_config_text(text, "s.conf") == config


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f'server_cert: "c"\nserver_key: "{SECRET}', 2),
        (f"server_key: {SECRET}", 1),
        (f'server_keys: "{SECRET}"', 1),
        (f'client_verify: "{SECRET}"', 1),
        (f"-----BEGIN PRIVATE KEY-----\n{SECRET}", 1),
        (f'server_key: "{SECRET}"\n\nserver_key: "{SECRET}"', 3),
    ],
)
def test_a_fault_is_named_by_its_line_and_never_quoted(text: str, line: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_ssl_config_text(text, "s.conf")
    assert caught.value.message == f"Invalid protobuf file: 's.conf': line {line} is not an SSLConfig's text"
    # A traceback of the error does not show the secret line either.
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


def test_a_config_shows_no_key() -> None:
    assert SECRET not in repr(SslConfig(SECRET, "c"))
