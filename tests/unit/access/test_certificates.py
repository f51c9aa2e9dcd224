"""Files of TLS, and names in certificates."""

from __future__ import annotations

import datetime
import logging
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from service.access.tls import TlsFile
from service.errors import InvalidRequest
from service.observe.reload_metrics import TlsCounter
from service.wire.config_protos import SslConfig
from tests.certificates import LONG_AGO, Authority, Issued, key_pem, ssl_config

first_end_s = pytest.importorskip("service._native", reason="the native core is not built").first_end_s
AUTHORITY = Authority()
GOOD, OTHER = AUTHORITY.issue(), AUTHORITY.issue()
NO_CERTIFICATE = "is not the text of a certificate (PEM), or is damaged"
NEEDS_CA = "client_verify needs custom_ca: the authorities that sign clients' certificates"
DAMAGED = GOOD.cert[:300] + GOOD.cert[310:]
BROKEN = [
    ("", "server_key is missing"),
    (ssl_config(Issued(GOOD.key, " \n")), "server_cert is missing"),
    (ssl_config(Issued(GOOD.key, OTHER.cert)), "server_key does not belong to the first certificate in server_cert"),
    (
        ssl_config(Issued(GOOD.key, AUTHORITY.pem + GOOD.cert)),
        "server_key does not belong to the first certificate in server_cert",
    ),
    (ssl_config(Issued(GOOD.key, "server.pem")), f"server_cert {NO_CERTIFICATE}"),
    (ssl_config(Issued(GOOD.key, GOOD.key)), f"server_cert {NO_CERTIFICATE}"),
    (ssl_config(Issued(GOOD.key, DAMAGED)), f"server_cert {NO_CERTIFICATE}"),
    (ssl_config(Issued("server.key", GOOD.cert)), "server_key is not the text of a private key (PEM), or is damaged"),
    (
        ssl_config(Issued(GOOD.key[:80] + GOOD.key[90:], GOOD.cert)),
        "server_key is not the text of a private key (PEM), or is damaged",
    ),
    (
        ssl_config(Issued(key_pem(ec.generate_private_key(ec.SECP256R1()), b"password"), GOOD.cert)),
        "server_key is encrypted, and an SSLConfig has no password; give it decrypted",
    ),
    (ssl_config(GOOD) + 'custom_ca: "ca.pem"', f"custom_ca {NO_CERTIFICATE}"),
    (ssl_config(GOOD) + 'custom_ca: "\\303\\244"', f"custom_ca {NO_CERTIFICATE}"),
    (
        ssl_config(GOOD) + "client_verify: true",
        NEEDS_CA,
    ),
    ("server_key", "Invalid protobuf file: '{path}': line 1 is not an SSLConfig's text"),
    ("\udcff", "Invalid protobuf file: '{path}': it is not UTF-8 text"),
]


def write(path: Path, text: str) -> Path:
    """Writes a file."""
    path.write_bytes(text.encode(errors="surrogateescape"))
    return path


def open_file(path: Path, counter: TlsCounter) -> TlsFile:
    """Returns the TlsFile of the gRPC port."""
    return TlsFile(path, api="grpc", protocols=["h2"], counter=counter)


@pytest.mark.parametrize(("text", "why"), BROKEN, ids=[str(number) for number in range(len(BROKEN))])
def test_a_broken_file_stops_the_start_and_replaces_nothing(
    text: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "s.conf", text)
    counter = TlsCounter()
    with pytest.raises(InvalidRequest) as caught:
        open_file(path, counter)
    assert caught.value.message == why.format(path=path)
    assert counter.lines() == []

    file = open_file(write(path, ssl_config(GOOD)), counter)
    config = file.config()
    write(path, text)
    for _ in range(3):
        file.poll_once()
    assert file.config() is config
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [vars(record)["reason"] for record in told] == [why.format(path=path)]
    key_lines = [line for line in GOOD.key.splitlines() if not line.startswith("-")]
    assert not any(line in record.getMessage() + str(vars(record)) for record in caplog.records for line in key_lines)
    assert 'embedding_server_tls_reloads_total{api="grpc",outcome="refused"} 1.0' in counter.lines()

    file.poll_once()
    write(path, ssl_config(OTHER))
    file.poll_once()
    assert file.config() is not config
    assert file.config().server_cert == OTHER.cert
    assert 'embedding_server_tls_reloads_total{api="grpc",outcome="taken"} 1.0' in counter.lines()


def test_a_file_that_is_gone_is_told_of_once_and_taken_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "s.conf", ssl_config(GOOD))
    counter = TlsCounter()
    file = open_file(path, counter)
    config = file.config()
    for _ in range(2):
        path.unlink()
        file.poll_once()
        file.poll_once()
        # A file that is deleted and written again with the same text is no change.
        write(path, ssl_config(GOOD))
        file.poll_once()
    assert file.config() is config
    reasons = [vars(record)["reason"] for record in caplog.records if record.levelno == logging.ERROR]
    assert reasons == [f"cannot read {path}: No such file or directory"] * 2


def test_verification_of_clients_is_neither_begun_nor_ended_by_a_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for first, then in ((AUTHORITY, None), (None, AUTHORITY)):
        file = open_file(write(tmp_path / "s.conf", ssl_config(GOOD, first)), TlsCounter())
        assert file.context().verify_mode == (ssl.CERT_REQUIRED if first else ssl.CERT_NONE)
        config = file.config()
        write(tmp_path / "s.conf", ssl_config(OTHER, then))
        file.poll_once()
        assert file.config() is config
        reason = "client_verify can not change while the server runs; start it anew"
        assert vars(caplog.records[-1])["reason"] == reason


def test_a_certificate_that_is_out_of_date_is_taken_with_a_warning_and_its_end_is_a_metric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counter = TlsCounter()
    open_file(write(tmp_path / "s.conf", ssl_config(AUTHORITY.issue(ends=LONG_AGO))), counter)
    assert [record.message for record in caplog.records] == ["certificate accepted, but it has expired"]
    # 2020-01-01 00:00:00 UTC.
    assert counter.lines()[2] == ('embedding_server_tls_certificate_end_timestamp_seconds{api="grpc"} 1577836800.0')


def test_comments_between_certificates_may_be_in_any_language(tmp_path: Path) -> None:
    chain = Issued(GOOD.key, f"# Zertifikat für den Server\n{GOOD.cert}# 証明書\n{AUTHORITY.pem}")
    open_file(write(tmp_path / "s.conf", ssl_config(chain, AUTHORITY)), TlsCounter())


def test_only_protocols_and_ciphers_that_are_held_for_strong(tmp_path: Path) -> None:
    context = open_file(write(tmp_path / "s.conf", ssl_config(GOOD)), TlsCounter()).context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    for cipher in context.get_ciphers():
        assert cipher["aead"], cipher["name"]
        assert cipher["protocol"] == "TLSv1.3" or cipher["kea"] == "kx-ecdhe", cipher["name"]
        assert cipher["strength_bits"] >= 128, cipher["name"]


@pytest.mark.slow
def test_the_documented_command_makes_a_file_from_pem_files(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/first-deployment.md").read_text()
    command = next(block for block in text.split("```") if "server_cert tls.crt" in block).removeprefix("sh")
    # What docs/security.md adds for clients with certificates.
    command = command.replace("server_cert tls.crt", "server_cert tls.crt custom_ca ca.crt")
    command += "echo 'client_verify: true' >> ssl.conf"
    for name, pem in (("tls.key", GOOD.key), ("tls.crt", GOOD.cert), ("ca.crt", AUTHORITY.pem)):
        write(tmp_path / name, pem)
    subprocess.run(["sh", "-ec", command.replace("python3", sys.executable)], cwd=tmp_path, check=True)
    file = open_file(tmp_path / "ssl.conf", TlsCounter())
    assert file.config() == SslConfig(GOOD.key, GOOD.cert, AUTHORITY.pem, True)


@pytest.mark.parametrize("year", [2021, 2049, 2050, 2199])
def test_the_end(year: int) -> None:
    # Certificates write the year of a date before 2050 with two digits, and later years with four.
    ends = datetime.datetime(year, 2, 28, 23, 59, 58, tzinfo=datetime.UTC)
    cert = AUTHORITY.issue(ends=ends).cert
    assert first_end_s(cert) == ends.timestamp()
    later = AUTHORITY.issue(ends=ends + datetime.timedelta(days=1)).cert
    assert first_end_s(f"a comment\n{later}{cert}") == ends.timestamp()


def test_what_is_no_certificate() -> None:
    cert = AUTHORITY.issue().cert
    lines = cert.splitlines()
    for text in (
        "",
        "server.pem",
        AUTHORITY.issue().key,
        cert.replace("CERTIFICATE", "PUBLIC KEY"),
        "\n".join([lines[0], lines[1], lines[-1]]),
        "\n".join([lines[0], "AAAA", lines[-1]]),
        "\n".join([lines[0], "A", lines[-1]]),
        "\n".join([lines[0], "", lines[-1]]),
    ):
        with pytest.raises(ValueError):
            first_end_s(text)


def test_every_cut_of_a_certificate_is_refused_in_the_same_way() -> None:
    whole = AUTHORITY.issue().cert
    begin, end = whole.index("\n") + 1, whole.index("-----END")
    for size in range(0, end - begin - 4, 7):
        with pytest.raises(ValueError):
            first_end_s(whole[: begin + size] + "\n" + whole[end:])
