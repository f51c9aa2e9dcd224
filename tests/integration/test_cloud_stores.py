"""Base paths gs:// and az:// over emulators of Google's and Azure's stores, if the emulators are installed."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_export.__main__ import main
from tests.exposition import read_exposition
from tests.integration.cloud_emulators import BUCKET, EMULATORS, Azurite, FakeGcsServer, is_installed
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.integration.store_proxy import Fault, StoreProxy
from tests.toy_model import add_filler, write_toy_model

pytestmark = pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="obstore is not installed")
# Size of an object that the server reads in three parts.
FILLER_BYTES = 20 << 20

Store = Azurite | FakeGcsServer


@pytest.fixture(scope="module", params=EMULATORS, ids=[emulator.SCHEME for emulator in EMULATORS])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if not is_installed(request.param):
        pytest.skip(f"{request.param.PROGRAM} is not on PATH")
    emulator: Store = request.param()
    yield emulator
    emulator.kill()


@pytest.fixture
def proxy(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StoreProxy]:
    """Starts a proxy before the store, and points the store's clients at it with environment variables."""
    proxy = StoreProxy(store.port)
    for name, value in store.variables(proxy.url, tmp_path).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture
def uri(store: Store, tmp_path: Path) -> str:
    """Returns a URI in the store that no other test uses."""
    return f"{store.SCHEME}://{BUCKET}/{tmp_path.name}"


def fill(store: Store, folder: Path, prefix: str) -> int:
    """Uploads the files of a version; returns the number of their bytes."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in paths:
        store.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return sum(path.stat().st_size for path in paths)


def read_bytes(server: ServerProcess) -> float:
    text = server.http.get("/metrics").text
    return read_exposition(text)["embedding_server_store_read_bytes_total"].value(model="default")


def problem(server: ServerProcess) -> str:
    return str(server.http.get("/v1/statusz").json()["stores"][0]["problem"])


def test_a_version_is_fetched_resumed_after_a_cut_and_not_fetched_again(
    store: Store, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    write_toy_model(first)
    fill(store, first, f"{tmp_path.name}/1")
    server = start().answering()
    until(lambda: server.tells({"user": [1]}, {"user": [[1, 10]]}))
    before = read_bytes(server)
    write_toy_model(second, scale=2)
    filler = add_filler(second, FILLER_BYTES)

    asked = itertools.count()

    def cut(method: str, path: str, query: dict[str, list[str]]) -> Fault | None:
        # The server fetches the parts of the object "filler" at the same time. Only the first part arrives whole; each
        # other connection is cut after 1,000 bytes.
        return Fault(cut_after=1000) if path.endswith("filler") and next(asked) else None

    proxy.rule = cut
    size = fill(store, second, f"{tmp_path.name}/2")
    until(lambda: "UNAVAILABLE" in server.http.get("/v1/models/default").text)
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    proxy.rule = None
    until(lambda: server.tells({"user": [1]}, {"user": [[2, 20]]}))
    assert read_bytes(server) - before == size, "no byte was written twice"
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert (folder / "2" / "assets" / "filler").read_bytes() == filler.read_bytes()
    server.signal(15)
    server.exit_code()
    again = start().answering()
    until(lambda: again.tells({"user": [1]}, {"user": [[2, 20]]}))
    assert read_bytes(again) == 0
    assert "very-secret" not in server.text() + again.text()


def test_what_is_wrong_is_said_in_one_line_without_secrets(
    store: Store,
    proxy: StoreProxy,
    start: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_toy_model(tmp_path / "1")
    fill(store, tmp_path / "1", f"{tmp_path.name}/1")
    server = start().answering()
    until(lambda: server.tells({"user": [1]}, {"user": [[1, 10]]}))

    def busy(method: str, path: str, query: dict[str, list[str]]) -> Fault | None:
        return Fault(status=503, body=b"slow down")

    proxy.rule = busy
    until(lambda: problem(server) != "")
    assert problem(server).startswith("the store can not be read: ") and "503" in problem(server)
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    proxy.rule = lambda method, path, query: Fault(status=403)
    until(lambda: problem(server).startswith("the store denies access: "))
    proxy.rule = None
    until(lambda: problem(server) == "")
    if isinstance(store, Azurite):
        # Only with Azurite: fake-gcs-server answers 500 for a missing bucket, and checks no credentials.
        missing = start(model_base_path="az://nobody/toy", store_cache_dir=tmp_path / "missing").answering()
        until(lambda: problem(missing) != "")
        assert problem(missing) == "there is no such bucket"
        for name, value in store.wrong_variables(proxy.url, tmp_path).items():
            monkeypatch.setenv(name, value)
        denied = start(store_cache_dir=tmp_path / "denied").answering()
        until(lambda: problem(denied) != "")
        assert problem(denied).startswith("the store denies access: ") and "\n" not in problem(denied)
        assert "very-secret" not in denied.text()


def test_a_version_is_written_into_the_store(
    store: Store, proxy: StoreProxy, uri: str, start: Serve, tmp_path: Path
) -> None:
    if not store.CAN_WRITE:
        pytest.skip(f"{store.PROGRAM} takes no writes of the XML interface")
    version = tmp_path / "4"
    write_toy_model(version)
    add_filler(version, FILLER_BYTES)
    assert main(["upload", str(version), "--out", uri]) == 0
    puts = [one.path for one in proxy.requests if one.method == "PUT"]
    assert puts[0].endswith("4/assets.extra/lookup_manifest.json") and puts[-1].endswith("4/saved_model.pb")
    write_toy_model(tmp_path / "other" / "4", scale=2)
    assert main(["upload", str(tmp_path / "other" / "4"), "--out", uri]) == 1
    server = start().answering()
    until(lambda: server.tells({"user": [1]}, {"user": [[1, 10]]}))
