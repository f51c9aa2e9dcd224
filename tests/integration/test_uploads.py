"""`model-export` writes versions into a real S3 server: their order, repeated uploads, and refused ones."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from model_export.__main__ import main
from tests.deltas import delta_bytes, drop
from tests.integration.conftest import Serve
from tests.integration.process import until
from tests.integration.s3_server import BUCKET, S3Server
from tests.integration.store_proxy import Fault, StoreProxy
from tests.toy_model import MANIFEST as MANIFEST_FILE
from tests.toy_model import add_filler, write_toy_model

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("obstore", "moto"))), reason="obstore or moto is not installed"
)
URI = f"s3://{BUCKET}/toy"
MANIFEST = MANIFEST_FILE.as_posix()
MARKER = "saved_model.pb"
# Size of an object that is uploaded in several parts.
FILLER_BYTES = 20 << 20


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes an empty folder in which Python then makes all temporary folders."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "3"
    write_toy_model(folder)
    return folder


def written(proxy: StoreProxy) -> list[str]:
    """Returns the paths of the model's objects that were written through the proxy, in order, each once."""
    paths = [one.path for one in proxy.requests if one.method in ("PUT", "POST") and one.status == 200]
    return [path.removeprefix(f"/{BUCKET}/toy/") for path in dict.fromkeys(paths)]


def refusing(path_end: str) -> Callable[..., Fault | None]:
    """Returns a rule by which the store refuses to write objects whose paths end like this."""

    def rule(method: str, path: str, query: dict[str, list[str]]) -> Fault | None:
        return Fault(status=403) if method == "PUT" and path.endswith(path_end) else None

    return rule


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_manifest_is_written_first_and_the_marker_last(
    s3: S3Server, proxy: StoreProxy, version: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop(version, 1, delta_bytes(version, 1, "user", [1], [[5, 50]]))
    (version / ".left-over").write_bytes(b"of another program")
    add_filler(version, FILLER_BYTES)
    assert main(["upload", str(version), "--out", URI]) == 0
    names = written(proxy)
    assert (names[0], names[-1]) == (f"3/{MANIFEST}", f"3/{MARKER}")
    expected = files(version)
    del expected[".left-over"]
    assert s3.contents("toy/3/") == expected
    total = sum(map(len, expected.values()))
    sent = f"sent now: {len(expected)} objects, {total:,} bytes"
    assert capsys.readouterr().out == f"uploaded: {URI}/3, {total:,} bytes; {sent}\n"
    # The next upload of the same version sends only its new delta.
    drop(version, 2, delta_bytes(version, 2, "user", [1], [[6, 60]]))
    proxy.requests.clear()
    assert main(["upload", str(version), "--out", f"{URI}/"]) == 0
    assert written(proxy) == ["3/deltas/0000000000000002.delta"]


def test_an_upload_that_failed_goes_on_and_servers_wait_for_it(
    s3: S3Server,
    proxy: StoreProxy,
    version: Path,
    start: Serve,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proxy.rule = refusing("variables.index")
    assert main(["upload", str(version), "--out", URI]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"model-export: cannot write {URI}/3: the store denies access: ") and error.count("\n") == 1
    assert MARKER not in {name.removeprefix("3/") for name in written(proxy)}
    server = start().answering()
    until(lambda: server.http.get("/v1/statusz").json()["stores"][0]["versions"][0]["state"] == "INCOMPLETE")
    proxy.rule = None
    before = written(proxy)
    proxy.requests.clear()
    assert main(["upload", str(version), "--out", URI]) == 0
    assert not set(before) & set(written(proxy)), "no object is sent twice"
    until(lambda: server.tells({"user": [1]}, {"user": [[1, 10]]}))


def test_compact_writes_the_next_version_into_the_store(
    s3: S3Server, proxy: StoreProxy, version: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.upload(version, "toy/7")
    drop(version, 1, delta_bytes(version, 1, "user", [1], [[5, 50]]))
    assert main(["compact", str(version), "--out", URI]) == 0
    out = capsys.readouterr().out
    assert f"uploaded: {URI}/8, " in out
    assert s3.contents("toy/8/")[MARKER] == (version / MARKER).read_bytes()
    assert list(temporary.iterdir()) == []
    # The command refuses an existing version number before it writes anything.
    assert main(["compact", str(version), "--out", URI, "--version", "8"]) == 1
    assert f"{URI}/8 exists; a version is never overwritten" in capsys.readouterr().err


def test_a_version_that_can_not_be_sent_is_kept_with_the_command_that_goes_on(
    s3: S3Server, proxy: StoreProxy, version: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop(version, 1, delta_bytes(version, 1, "user", [1], [[5, 50]]))
    proxy.rule = refusing(MARKER)
    assert main(["compact", str(version), "--out", URI]) == 1
    said = capsys.readouterr().err.rstrip().rpartition("to go on: model-export ")[2].split()
    assert said[0] == "upload" and said[2:] == ["--out", URI]
    proxy.rule = None
    proxy.requests.clear()
    assert main(said) == 0
    assert written(proxy) == [f"1/{MARKER}"]
    assert main(["demo", "--if_missing", "--out", URI]) == 0
    assert capsys.readouterr().out.endswith(f"{URI} holds version 1: nothing to do\n")
    # A command that fails before it has made a version leaves no temporary folder.
    shutil.rmtree(temporary)
    temporary.mkdir()
    drop(version, 2, b"no delta")
    assert main(["compact", str(version), "--out", URI]) == 1
    assert list(temporary.iterdir()) == []


def test_a_number_of_another_version_is_refused(
    s3: S3Server, proxy: StoreProxy, version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    write_toy_model(other, scale=2)
    s3.upload(other, "toy/3")
    assert main(["upload", str(version), "--out", URI]) == 1
    assert f"{URI}/3 is another version; a version is never overwritten" in capsys.readouterr().err

    # The upload also fails if the other manifest is written after this upload's listing, and before its own manifest.
    def race(method: str, path: str, query: dict[str, list[str]]) -> Fault | None:
        if method == "PUT" and path.endswith(MANIFEST):
            proxy.rule = None
            return Fault(before=lambda path: s3.put(f"toy/4/{MANIFEST}", (other / MANIFEST).read_bytes()))
        return None

    proxy.rule = race
    assert main(["upload", str(version), "--out", URI, "--version", "4"]) == 1
    assert f"{URI}/4 is another version; a version is never overwritten" in capsys.readouterr().err
    assert list(s3.contents("toy/4/")) == [MANIFEST]
    s3.put("toy/5/assets/file", b"of nobody")
    assert main(["upload", str(version), "--out", URI, "--version", "5"]) == 1
    assert "has objects but no lookup manifest" in capsys.readouterr().err


def test_wrong_arguments_are_told_in_one_line(
    s3: S3Server, proxy: StoreProxy, version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*arguments: str) -> str:
        assert main(arguments) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    named = tmp_path / "film"
    shutil.copytree(version, named)
    assert "is not named by a version number: give --version" in error("upload", str(named), "--out", URI)
    assert "versions are positive" in error("upload", str(named), "--out", URI, "--version", "0")
    assert "there is no such bucket" in error("upload", str(version), "--out", "s3://nobody/toy")
    assert "cannot read s3://nobody/toy: there is no such bucket" in error(
        "compact", str(version), "--out", "s3://nobody/toy"
    )
    (version / "variables" / "variables.index").unlink()
    assert "is not complete: variables/variables.index is missing" in error("upload", str(version), "--out", URI)
    with pytest.raises(SystemExit):
        main(["upload", str(version), "--out", str(tmp_path)])
    assert "is not s3://BUCKET/PLACE" in capsys.readouterr().err
