"""The file of callers: the fields that it may have, and the effect of a change to it."""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path

import pytest

from service.access.access import DEFAULT_OPEN, AuthConfigError, AuthFile, read_auth_config
from service.access.callers import RIGHTS, Rule
from service.errors import Unauthenticated
from service.observe.reload_metrics import ReloadCounter

TOKEN = "a-token-of-many-letters"
DIGEST = sha256(TOKEN.encode()).hexdigest()
ENTRY = f'[[caller]]\nname = "a"\ntoken_sha256 = ["{DIGEST}"]\n'
ALLOW = '[[caller.allow]]\nmodels = ["m", "n-*"]\nrights = ["predict"]\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "auth.toml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another-token-from-a-file\n")
    text = (
        'open = ["metrics"]\n' + ENTRY + 'token_file = ["token"]\ncertificate = ["URI:spiffe://x/a", "CN:a"]\n' + ALLOW
    )
    config = read_auth_config(write(tmp_path, text))
    (caller,) = config.callers
    assert config.open_parts == {"metrics"}
    assert caller.name == "a" and caller.certificates == ("URI:spiffe://x/a", "CN:a")
    assert caller.digests == (sha256(TOKEN.encode()).digest(), sha256(b"another-token-from-a-file").digest())
    assert caller.rules == (Rule(("m", "n-*"), frozenset({"predict"})),)
    assert read_auth_config(write(tmp_path, ENTRY)).open_parts == DEFAULT_OPEN


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"no \[\[caller\]\]"),
        ("x", "not TOML"),
        ("caller = 3", "caller must be tables"),
        (ENTRY + "tokens = []", "not known: tokens"),
        ("users = 1\n" + ENTRY, "not known: users"),
        ('open = ["models"]\n' + ENTRY, 'got "models"'),
        ('open = "health"\n' + ENTRY, "must be a list of strings"),
        ('[[caller]]\nname = "a b"\n', "needs a name"),
        ('[[caller]]\nname = "a"\n', "could never authenticate"),
        (f'[[caller]]\nname = "a"\ntoken_sha256 = ["{TOKEN}"]\n', "64 lower-case hexadecimal"),
        (f'[[caller]]\nname = "a"\ntoken_sha256 = ["{DIGEST.upper()}"]\n', "64 lower-case hexadecimal"),
        ('[[caller]]\nname = "a"\ntoken_file = ["absent"]\n', "cannot read .*absent: No such file"),
        ('[[caller]]\nname = "a"\ntoken_file = ["short"]\n', "at least 16 bytes"),
        ('[[caller]]\nname = "a"\ntoken_file = ["two"]\n', "one token"),
        ('[[caller]]\nname = "a"\ncertificate = ["a.example"]\n', "expected URI:"),
        (ENTRY + ENTRY, "same name"),
        (ENTRY + ENTRY.replace('"a"', '"b"'), "same token"),
        (ENTRY + '[[caller.allow]]\nmodels = ["m"]\n', "needs models and rights"),
        (ENTRY + '[[caller.allow]]\nmodels = ["*m"]\nrights = ["predict"]\n', r'"\*m": expected a name'),
        (ENTRY + '[[caller.allow]]\nmodels = ["m"]\nrights = ["write"]\n', 'got "write"'),
        (ENTRY + '[[caller.allow]]\nmodel = ["m"]\nrights = ["predict"]\n', "not known: model"),
    ],
)
def test_what_is_wrong_is_told_and_no_token_with_it(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "short").write_text("short")
    (tmp_path / "two").write_text(f"{TOKEN}\n{TOKEN}\n")
    with pytest.raises(AuthConfigError, match=told) as caught:
        read_auth_config(write(tmp_path, text))
    assert TOKEN not in str(caught.value) and DIGEST not in str(caught.value).lower()


def test_a_file_that_is_absent(tmp_path: Path) -> None:
    with pytest.raises(AuthConfigError, match="No such file"):
        read_auth_config(tmp_path / "auth.toml")


def test_a_broken_file_keeps_the_callers_and_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counter = ReloadCounter()
    path = write(tmp_path, ENTRY + ALLOW)
    file = AuthFile(path, counter)
    caplog.set_level(logging.DEBUG)

    def rights() -> frozenset[str]:
        return file.callers.authenticate(f"Bearer {TOKEN}".encode()).rights("m")

    file.poll_once()
    assert rights() == {"predict"} and file.callers.generation == 0
    write(tmp_path, ENTRY + "[[")
    for _ in range(3):
        file.poll_once()
    assert rights() == {"predict"}
    assert [record.message for record in caplog.records] == ["auth config refused; the one before stays in force"]
    assert 'embedding_server_auth_config_reloads_total{result="refused"} 1.0' in counter.lines()
    assert "embedding_server_auth_config_is_current{} 0.0" in counter.lines()
    write(tmp_path, ENTRY + ALLOW.replace('"predict"', '"predict", "admin", "metadata"'))
    file.poll_once()
    assert rights() == set(RIGHTS)
    assert "embedding_server_auth_config_is_current{} 1.0" in counter.lines()
    assert TOKEN not in caplog.text and DIGEST not in caplog.text


def test_a_token_file_that_is_rotated_is_noticed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    file = AuthFile(write(tmp_path, '[[caller]]\nname = "a"\ntoken_file = ["token"]\n'), ReloadCounter())
    assert file.callers.authenticate(f"Bearer {TOKEN}".encode()).name == "a"
    token.write_text("the-next-token-of-this-caller")
    file.poll_once()
    assert file.callers.authenticate(b"Bearer the-next-token-of-this-caller").name == "a"
    with pytest.raises(Unauthenticated):
        file.callers.authenticate(f"Bearer {TOKEN}".encode())


def test_without_a_file_there_are_no_metrics_of_one() -> None:
    assert ReloadCounter().lines() == []
