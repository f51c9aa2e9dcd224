"""Base paths in an object store, over a real S3 server that is cut off, killed, refuses, and has half an upload."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deltas import delta_bytes
from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.integration.s3_server import BUCKET, S3Server
from tests.integration.store_proxy import Fault, StoreProxy
from tests.toy_model import add_filler, write_toy_model

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("obstore", "moto"))), reason="obstore or moto is not installed"
)
SHARD = "variables/variables.data-00000-of-00001"
URI = f"s3://{BUCKET}/toy"
# The server reads an object of this size in three parts.
FILLER_BYTES = 20 << 20
# The server reads an object of LARGE_BYTES in five parts, the last of 1,000 bytes.
PART_BYTES = 8 << 20
LARGE_BYTES = 4 * PART_BYTES + 1000


def version(tmp_path: Path, scale: int, filler_bytes: int = 0) -> Path:
    """Writes a toy version whose rows are multiplied by a scale; filler_bytes: size of a further file, 0 for none."""
    folder = tmp_path / f"made-{scale}"
    write_toy_model(folder, scale=scale)
    if filler_bytes:
        add_filler(folder, filler_bytes)
    return folder


def answers(server: ServerProcess, scale: int) -> bool:
    return server.tells({"user": [1]}, {"user": [[scale, 10 * scale]]})


def states(server: ServerProcess) -> dict[int, tuple[str, str, str]]:
    """Returns each version's state, error code and message."""
    found = server.http.get("/v1/models/default").json().get("model_version_status", [])
    return {
        int(one["version"]): (one["state"], one["status"]["error_code"], one["status"]["error_message"])
        for one in found
    }


def count(server: ServerProcess, name: str) -> float:
    return read_exposition(server.http.get("/metrics").text)[f"embedding_server_store_{name}"].value(model="default")


def cached(tmp_path: Path) -> set[str]:
    """Returns the names of all entries in the model's folder of the cache."""
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    return {path.name for path in folder.iterdir()}


def store_state(server: ServerProcess) -> Any:
    (state,) = server.http.get("/v1/statusz").json()["stores"]
    return state


def test_versions_are_fetched_swapped_removed_and_not_fetched_again(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    s3.upload(version(tmp_path, 1), "toy/1")
    server = start().answering()
    until(lambda: answers(server, 1))
    assert store_state(server)["versions"] == [
        {"version": 1, "state": "HERE", "message": "", "done_bytes": count(server, "read_bytes_total")}
        | {"num_bytes": count(server, "read_bytes_total")}
    ]
    s3.upload(version(tmp_path, 2), "toy/2")
    until(lambda: answers(server, 2))
    until(lambda: cached(tmp_path) == {"2"})
    assert (count(server, "fetched_versions_total"), count(server, "is_listed")) == (2, 1)
    # Version 2 is deleted from the store, so the server fetches version 1 again and deletes its copy of version 2.
    for path in (tmp_path / "made-2").rglob("*"):
        if path.is_file():
            s3.delete(f"toy/2/{path.relative_to(tmp_path / 'made-2').as_posix()}")
    until(lambda: answers(server, 1))
    until(lambda: cached(tmp_path) == {"1"})
    server.signal(15)
    assert server.exit_code() == 0
    again = start().answering()
    until(lambda: answers(again, 1))
    assert count(again, "read_bytes_total") == 0
    again.signal(15)
    again.exit_code()
    # The object store is gone, so a new server process serves the version that an earlier one has fetched.
    proxy.close()
    alone = start().answering()
    until(lambda: answers(alone, 1))
    # The version may be served before the first listing has failed.
    until(lambda: count(alone, "is_listed") == 0)


def test_deltas_that_are_added_in_the_store_are_served_also_after_a_restart(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    made = version(tmp_path, 1)
    s3.upload(made, "toy/1")
    server = start().answering()
    until(lambda: answers(server, 1))
    s3.put("toy/1/deltas/1.delta", delta_bytes(made, 1, "user", [1], [[5, 50]]))
    until(lambda: answers(server, 5))
    server.signal(15)
    assert server.exit_code() == 0
    second = delta_bytes(made, 2, "user", [1], [[6, 60]])
    s3.put("toy/1/deltas/2.delta", second)
    again = start().answering()
    until(lambda: answers(again, 6))
    until(lambda: count(again, "read_bytes_total") == len(second))


EMPTY = b'<?xml version="1.0"?><ListBucketResult><Name>models</Name><KeyCount>0</KeyCount></ListBucketResult>'


@pytest.mark.parametrize(
    ("fault", "hits_versions_only", "text"),
    [
        (Fault(200, EMPTY), False, "lists no versions any more"),
        (Fault(200, b"<html>hello</html>"), False, "lists no versions any more"),
        (Fault(drops=40), False, "the store can not be read"),
        (Fault(200, EMPTY), True, "does not list all files of the version"),
        (Fault(200, b"<html>hello</html>"), True, "does not list all files of the version"),
        (Fault(drops=40), True, "the store can not be read"),
        (Fault(503), True, "the store can not be read"),
        (Fault(held=threading.Event()), False, ""),
        (Fault(held=threading.Event()), True, ""),
    ],
    ids=[
        "empty",
        "page",
        "cut",
        "version-empty",
        "version-page",
        "version-cut",
        "version-503",
        "hangs",
        "version-hangs",
    ],
)
def test_a_cached_version_is_served_whatever_the_store_lists(
    s3: S3Server,
    proxy: StoreProxy,
    start: Serve,
    tmp_path: Path,
    fault: Fault,
    hits_versions_only: bool,
    text: str,
) -> None:
    s3.upload(version(tmp_path, 1), "toy/1")
    with start().answering() as server:
        until(lambda: answers(server, 1))

    def is_hit(query: dict[str, list[str]]) -> bool:
        return "list-type" in query and (not hits_versions_only or "delimiter" not in query)

    proxy.requests.clear()
    proxy.rule = lambda method, path, query: fault if is_hit(query) else None
    again = start().answering()
    until(lambda: answers(again, 1))
    # A request that hangs is recorded when its answer is sent: the server answers before the store does.
    assert fault.held is None or not [one for one in proxy.requests if is_hit(one.query)]
    if text:
        until(
            lambda: (
                text in store_state(again)["problem"] + "".join(v["message"] for v in store_state(again)["versions"])
            )
        )
    assert answers(again, 1) and cached(tmp_path) >= {"1"}
    assert again.http.get("/readyz").status_code == 200
    if fault.held is not None:
        fault.held.set()
    proxy.rule = None
    s3.upload(version(tmp_path, 2), "toy/2")
    until(lambda: answers(again, 2))


def test_a_cached_version_serves_until_a_newer_one_is_fetched(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    s3.upload(version(tmp_path, 1), "toy/1")
    with start().answering() as server:
        until(lambda: answers(server, 1))
    s3.upload(version(tmp_path, 2), "toy/2")
    held = threading.Event()
    proxy.rule = lambda method, path, query: Fault(held=held) if "/2/" in path else None
    again = start().answering()
    until(lambda: answers(again, 1))
    until(lambda: [one["version"] for one in store_state(again)["versions"]][:1] == [2])
    assert answers(again, 1)
    held.set()
    until(lambda: answers(again, 2))


def test_a_version_that_was_replaced_in_the_store_is_served_from_the_cache_and_then_loaded_again(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    s3.upload(version(tmp_path, 1), "toy/1")
    with start().answering() as server:
        until(lambda: answers(server, 1))
    s3.upload(version(tmp_path, 2), "toy/1")
    held = threading.Event()
    proxy.rule = lambda method, path, query: Fault(held=held) if path.endswith(SHARD) else None
    again = start(reload_replaced_versions=True).answering()
    until(lambda: answers(again, 1))
    held.set()
    until(lambda: answers(again, 2))
    until(lambda: cached(tmp_path) == {"1"})


def test_a_store_that_is_cut_off_and_killed_resumes_and_the_old_version_serves(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    s3.upload(version(tmp_path, 1), "toy/1")
    server = start().answering()
    until(lambda: answers(server, 1))
    before = count(server, "read_bytes_total")
    made = version(tmp_path, 2, FILLER_BYTES)
    asked = itertools.count()

    def cut(method: str, path: str, query: dict[str, list[str]]) -> Fault | None:
        # The server fetches the parts of the object "filler" at the same time. Only the first part arrives whole; each
        # other connection is cut after 1,000 bytes.
        return Fault(cut_after=1000) if path.endswith("filler") and next(asked) else None

    proxy.rule = cut
    size = s3.upload(made, "toy/2")
    until(lambda: ".fetching-2" in cached(tmp_path))
    until(lambda: states(server).get(2, ("", "", ""))[1] == "UNAVAILABLE")
    s3.kill()
    # No store answers any more: the proxy closes each connection without a byte.
    proxy.rule = lambda method, path, query: Fault(cut_after=-1)
    until(lambda: store_state(server)["problem"] != "")
    assert f"version 2 of {URI}: the store can not be read" in states(server)[2][2]
    for _ in range(20):
        assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}
    assert server.http.get("/readyz").status_code == 200
    s3.start()
    s3.upload(tmp_path / "made-1", "toy/1")
    s3.upload(made, "toy/2")
    proxy.rule = None
    until(lambda: answers(server, 2))
    assert count(server, "read_bytes_total") - before == size, "no byte was written twice"
    assert "very-secret" not in server.text()
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert (folder / "2" / "assets" / "filler").read_bytes() == (made / "assets" / "filler").read_bytes()


def test_a_server_that_is_killed_within_an_object_continues_there_unless_the_object_changed(
    s3: S3Server,
    proxy: StoreProxy,
    start: Callable[..., ServerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(number: int) -> Path:
        """Starts a server, kills it when it has got four parts of the filler, and returns the partly fetched file."""
        store, requests = StoreProxy(s3.port), itertools.count(1)

        def hold(method: str, path: str, query: dict[str, list[str]]) -> Fault | None:
            # The server asks for four parts at a time. The first four are answered, and the fifth request is held.
            is_late = path.endswith("/filler") and next(requests) > 4
            return Fault(held=threading.Event()) if is_late else None

        store.rule = hold
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        server = start().answering()
        until(lambda: any(one["done_bytes"] >= 4 * PART_BYTES for one in store_state(server)["versions"]))
        server.signal(9)
        server.exit_code()
        store.close()
        (found,) = (tmp_path / "cache").glob(f"*/.fetching-{number}/assets/filler")
        assert found.stat().st_size == 4 * PART_BYTES
        return found

    def bytes_of_filler(number: int) -> int:
        """Starts a server and waits until a version serves; returns how many bytes of the filler the store sent."""
        store = StoreProxy(s3.port)
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        with start().answering() as server:
            until(lambda: answers(server, number))
        store.close()
        return sum(one.answer_bytes for one in store.requests if one.path.endswith("/filler"))

    def filler(number: int) -> bytes:
        (found,) = (tmp_path / "cache").glob(f"*/{number}/assets/filler")
        return found.read_bytes()

    made = version(tmp_path, 1, LARGE_BYTES) / "assets" / "filler"
    s3.upload(tmp_path / "made-1", "toy/1")
    with killed(1).open("ab") as partial:
        # Bytes that do not belong to the object, as after a kill or a power failure in the middle of a write.
        partial.write(b"torn" * 1000)
    assert bytes_of_filler(1) == LARGE_BYTES - 4 * PART_BYTES
    assert filler(1) == made.read_bytes()
    version(tmp_path, 2, LARGE_BYTES)
    s3.upload(tmp_path / "made-2", "toy/2")
    killed(2)
    s3.put("toy/2/assets/filler", made.read_bytes())
    assert bytes_of_filler(2) == LARGE_BYTES
    assert filler(2) == made.read_bytes()


def test_half_an_upload_waits_and_a_wrong_byte_is_refused(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    made = version(tmp_path, 1)
    s3.upload(made, "toy/1", but=SHARD)
    server = start().answering()
    until(lambda: store_state(server)["versions"][0]["state"] == "INCOMPLETE")
    assert store_state(server)["versions"][0]["message"] == f"{SHARD} is not there yet"
    server.wait_for_log("version is incomplete in its store", reason=f"{SHARD} is not there yet")
    assert states(server) == {1: ("START", "OK", "")}
    data = bytearray((made / SHARD).read_bytes())
    # The last byte of the file belongs to the last table.
    data[-1] ^= 1
    s3.put(f"toy/1/{SHARD}", bytes(data))
    until(lambda: states(server)[1][0] == "END")
    assert "do not have their checksum" in states(server)[1][2]
    s3.put(f"toy/1/{SHARD}", (made / SHARD).read_bytes())
    until(lambda: answers(server, 1))


def test_a_version_without_a_manifest_is_fetched_once_its_upload_rests(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    made = version(tmp_path, 1)
    shutil.rmtree(made / "assets.extra")
    s3.upload(made, "toy/1")
    server = start(version_settle_s=0.5).answering()
    server.wait_for_log("fetched", version=1)
    # The version ends as END, because no TensorFlow may open its graph here; but the server has fetched all of its
    # files.
    until(lambda: states(server)[1][0] == "END")
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    for path in made.rglob("*"):
        if path.is_file():
            assert (folder / "1" / path.relative_to(made)).read_bytes() == path.read_bytes()


def test_what_is_wrong_with_a_store_is_said_in_one_line(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    s3.upload(version(tmp_path, 1), "toy/1")

    def problem(**settings: object) -> str:
        """Returns the problem of model "default" in the readiness answer of a server with these settings."""
        with start(**settings).answering() as server:
            until(lambda: server.http.get("/readyz").json()["problems"]["default"] not in ("", UNSEEN))
            return str(server.http.get("/readyz").json()["problems"]["default"])

    assert problem(model_base_path="s3://nobody/toy") == "cannot read s3://nobody/toy: there is no such bucket"
    assert problem(model_base_path=f"{URI}y") == f"no version folder (an integer name such as 1) below {URI}y"
    small = problem(store_cache_mib=1, model_base_path=f"s3://{BUCKET}/large", store_cache_dir=tmp_path / "small")
    assert small == f"no version folder (an integer name such as 1) below s3://{BUCKET}/large"
    s3.deny()
    denied = problem(store_cache_dir=tmp_path / "denied")
    assert denied.startswith(f"cannot read {URI}: the store denies access: ") and "\n" not in denied
    proxy.close()
    assert "the store can not be read: " in problem(store_cache_dir=tmp_path / "off")


UNSEEN = "its folder has not been looked at yet"


def test_a_version_larger_than_the_cache_is_refused(
    s3: S3Server, proxy: StoreProxy, start: Serve, tmp_path: Path
) -> None:
    s3.upload(version(tmp_path, 1), "toy/1")
    server = start(store_cache_mib=1).answering()
    until(lambda: answers(server, 1))
    s3.upload(version(tmp_path, 2, 2 << 20), "toy/2")
    until(lambda: states(server).get(2, ("", "", ""))[0] == "END")
    assert "are left: it may have 1.0 MiB (--store_cache_mib), it has " in states(server)[2][2]
    assert answers(server, 1)
    # A second server with the same cache folder refuses to start.
    second = start()
    assert second.exit_code() == 2
    assert "is the cache of another server" in second.text()
