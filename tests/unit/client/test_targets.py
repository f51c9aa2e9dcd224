"""Every form of a target, and what is none."""

from __future__ import annotations

import pytest

from embedding_client.targets import Tls, parse_target


@pytest.mark.parametrize(
    ("text", "wire", "address", "has_tls"),
    [
        ("localhost:8500", "grpc", "localhost:8500", False),
        ("grpc://10.0.0.1:8500", "grpc", "10.0.0.1:8500", False),
        ("grpcs://emb.example:443", "grpc", "emb.example:443", True),
        ("http://localhost:8501", "http", "localhost:8501", False),
        ("HTTP://localhost:8501/", "http", "localhost:8501", False),
        ("https://emb.example:8501", "http", "emb.example:8501", True),
        ("[::1]:8500", "grpc", "[::1]:8500", False),
        ("http://[::1]:8501", "http", "[::1]:8501", False),
        ("unix:/run/embedding.sock", "grpc", "unix:/run/embedding.sock", False),
    ],
)
def test_forms(text: str, wire: str, address: str, has_tls: bool) -> None:
    target = parse_target(text)
    assert (target.wire, target.address, target.tls is not None) == (wire, address, has_tls)


def test_certificates_make_tls_of_any_scheme() -> None:
    tls = Tls(ca_file="ca.pem")
    assert parse_target("localhost:8500", tls).tls is tls
    assert str(parse_target("http://localhost:8501", tls)) == "https://localhost:8501"


def test_the_host_of_an_address_in_brackets_is_bare() -> None:
    assert parse_target("http://[::1]:8501").host == "::1"


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "localhost:", "localhost:x", "localhost:99999", ":8500", "ftp://h:1", "http://h:1/v1", "h:1?a=b"]
    + ["http://user@h:1", "http://h:0"],
)
def test_what_is_no_target_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port, grpc://host:port"):
        parse_target(text)


def test_tls_needs_more_than_a_file() -> None:
    with pytest.raises(ValueError, match="Unix socket"):
        parse_target("unix:/s", Tls())
    with pytest.raises(ValueError, match="go together"):
        Tls(cert_file="a.pem")
