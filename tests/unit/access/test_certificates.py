"""Reads the end of a certificate's validity, as another library wrote it."""

from __future__ import annotations

import datetime

import pytest

from service.access.tls import first_end_s
from tests.certificates import Authority

AUTHORITY = Authority()


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
