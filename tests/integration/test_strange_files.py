"""Pipes, sockets, devices, loops of links and folders stand in place of files: the server waits for none of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import Authority, ssl_config
from tests.integration.conftest import Serve
from tests.integration.process import until
from tests.integration.test_models import ask
from tests.integration.test_reload import versions
from tests.toy_model import INDEX, MANIFEST, SHARD

SAVED_MODEL = Path("saved_model.pb")
WARMUP = Path("assets.extra/tf_serving_warmup_requests")
OPTIONS = Path("assets.extra/saved_model_config.pb")
CALLER = 'open = ["health"]\n[[caller]]\nname = "somebody"\n'
ALLOWED = '[[caller.allow]]\nmodels = ["*"]\nrights = ["predict"]\n'
PLACES = (SAVED_MODEL, INDEX, SHARD, MANIFEST, WARMUP, OPTIONS)


def put_pipe(path: Path) -> None:
    """Makes a pipe to which nobody writes."""
    os.mkfifo(path)


def put_socket(path: Path) -> None:
    """Makes a Unix socket."""
    # The socket is bound by a path through the folder's descriptor, because a socket's path may have only 107 bytes.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def put_device(path: Path) -> None:
    """Makes a device like /dev/zero, which a reader could read forever."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o644, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes a device")


def put_loop(path: Path) -> None:
    """Puts a symbolic link at the path that leads to the path itself."""
    path.symlink_to(path.name)


def put_dangling(path: Path) -> None:
    """Makes a symbolic link to a file that does not exist."""
    path.symlink_to("absent")


def put_folder(path: Path) -> None:
    """Makes a folder."""
    path.mkdir()


STRANGE: dict[str, Callable[[Path], None]] = {
    "a pipe": put_pipe,
    "a socket": put_socket,
    "a device": put_device,
    "a loop": put_loop,
    "a dangling link": put_dangling,
    "a folder": put_folder,
}
by_kind = pytest.mark.parametrize("kind", STRANGE)


def replace_file(path: Path, kind: str) -> None:
    """Replaces a file by a strange one of this kind."""
    path.unlink(missing_ok=True)
    STRANGE[kind](path)


def test_one_in_place_of_a_versions_file_costs_that_version_alone(serve: Serve, base: Path, tmp_path: Path) -> None:
    listed = f'config {{ name: "default" base_path: "{base}" model_platform: "tensorflow" }}\n'
    # (kind of strange file, replaced file) -> the name of a model whose version 2 has that file.
    models = {(kind, place): f"{place.name}-{kind.split()[-1]}" for kind in STRANGE for place in PLACES}
    for (kind, place), name in models.items():
        # The server first loads version 2, one of whose files is strange: a pipe, a link or the like.
        shutil.copytree(base / "1", tmp_path / name / "1")
        replace_file(shutil.copytree(base / "1", tmp_path / name / "2") / place, kind)
        listed += (
            f'config {{ name: "{name}" base_path: "{tmp_path / name}" model_platform: "tensorflow" '
            "model_version_policy { all {} } }\n"
        )
    config = tmp_path / "models.conf"
    config.write_text(f"model_config_list {{ {listed} }}")
    server = serve(model_base_path="", model_config_file=config, max_num_load_retries=0).answering()
    for name in ("default", *(f"{name}/versions/1" for name in models.values())):
        until(lambda name=name: ask(server, name) == [1, 10])
    for (kind, place), name in models.items():
        # A version whose files differ from its manifest may be an unfinished copy, so the server waits
        # --version_settle_s.
        until(lambda name=name: versions(server, name)[2]["state"] in ("END", "AVAILABLE"))
        ended = versions(server, name)[2]
        if kind == "a dangling link" and place in (WARMUP, OPTIONS):
            # These files are optional, and a dangling link counts as an absent file.
            assert ended["state"] == "AVAILABLE"
            continue
        assert (ended["state"], ended["status"]["error_code"]) == ("END", "FAILED_PRECONDITION"), name
        if kind in ("a pipe", "a socket", "a device"):
            assert f"{kind}, expected a file" in ended["status"]["error_message"], name
        assert place.name in ended["status"]["error_message"] or kind == "a dangling link", (name, ended)
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    # The last record would be "not waiting for models that still load" if a load hung when the server stopped.
    assert server.records[-1]["message"] == "stopped"


@by_kind
def test_one_in_place_of_a_file_that_is_read_again_changes_nothing(
    serve: Serve, base: Path, tmp_path: Path, kind: str
) -> None:
    models, callers, certificate = (tmp_path / name for name in ("models.conf", "auth.toml", "ssl.conf"))
    models.write_text(
        f'model_config_list {{ config {{ name: "default" base_path: "{base}" model_platform: "tensorflow" }} }}'
    )
    callers.write_text(f'{CALLER}token_sha256 = ["{"0" * 64}"]\n{ALLOWED}')
    certificate.write_text(ssl_config(Authority().issue()))
    server = serve(
        model_base_path="",
        model_config_file=models,
        model_config_file_poll_wait_seconds=1,
        auth_config=callers,
        file_system_poll_wait_seconds=0.05,
        ssl_config_file=certificate,
    ).answering()
    server.wait_for_log("loaded")
    for path in (models, callers, certificate):
        replace_file(path, kind)
    refusals = {
        models: "model config refused",
        callers: "auth config refused; the one before stays in force",
        certificate: "certificate refused, the one before stays",
    }
    for path, message in refusals.items():
        reason = server.wait_for_log(message)["reason"]
        assert str(path) in reason
        if kind in ("a pipe", "a socket", "a device"):
            assert f"it is {kind}, expected a file" in reason
    assert server.http.get("/healthz").status_code == 200
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert server.records[-1]["message"] == "stopped"


# Each flag is tested with one kind of strange file, and each kind once: one function reads all these files, and has its
# own test with all kinds.
@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        ("model_config_file", "a pipe"),
        ("auth_config", "a socket"),
        ("ssl_config_file", "a device"),
        ("monitoring_config_file", "a loop"),
        ("batching_parameters_file", "a dangling link"),
        ("model_config_file", "a folder"),
    ],
)
def test_one_in_place_of_a_settings_file_ends_the_start(serve: Serve, tmp_path: Path, flag: str, kind: str) -> None:
    STRANGE[kind](tmp_path / "file")
    more = ("--enable_batching",) if flag == "batching_parameters_file" else ()
    server = serve(*more, **{flag: tmp_path / "file"})
    assert server.exit_code() == 2
    assert f"cannot read {tmp_path / 'file'}" in server.text()


def test_one_among_the_versions_is_no_version(serve: Serve, base: Path) -> None:
    for version, (kind, put) in enumerate(STRANGE.items(), 2):
        # A folder is a version.
        if kind != "a folder":
            put(base / str(version))
    server = serve().ready()
    assert ask(server, "default") == [1, 10]
    assert list(versions(server)) == [1]
