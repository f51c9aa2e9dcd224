"""The server starts and serves where containers put it: without a writable disk, with a strange user, few resources."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.integration.conftest import add_version
from tests.integration.limited import limited, lookup
from tests.integration.process import PATIENCE_S, ROOT, environment, until, unused_ports

pytestmark = pytest.mark.slow
ROW_1 = [[1, 10]]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not root: NO CONTAINER WAS IMITATED")
# A mount namespace in which no folder is writable, so that Python's tempfile finds none.
READ_ONLY = """
set -e
mount --bind "$1" /mnt
shift
for folder in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o ro none $folder; done
mount -o remount,bind,ro /
cd /
! "$1" -c 'import tempfile; tempfile.gettempdir()' 2>/dev/null
exec "$@"
"""


def contained(base: Path, *command: str) -> list[str]:
    """Returns a command that runs another one with the model's folder at /mnt and no writable folder."""
    return ["unshare", "--mount", *command, "sh", "-c", READ_ONLY, "sh", str(base)]


@needs_root
def test_a_read_only_root_without_a_temporary_folder(base: Path) -> None:
    given = {"prefix": contained(base), "variables": {"PYTHONPATH": str(ROOT)}, "model_base_path": "/mnt"}
    with limited(**given) as (process, http):  # type: ignore[arg-type]
        assert lookup(http, [1]) == ROW_1
        assert http.get("/metrics").status_code == http.get("/v1/models/default").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@needs_root
def test_a_user_without_a_name_or_a_home(base: Path) -> None:
    # The capability lets the user read this test's files, which only root may.
    caps = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    user = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *caps, "env", "-u", "HOME", "-u", "USER"]
    with limited(base, prefix=user) as (process, http):
        assert lookup(http, [1]) == ROW_1
        assert f"Uid:\t{54321}" in Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_sixty_four_descriptors(base: Path) -> None:
    with limited(base, limits={resource.RLIMIT_NOFILE: 64}) as (process, http):
        assert lookup(http, [1]) == ROW_1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("limit", [64, 100])
def test_connections_leave_descriptors_for_a_new_version(base: Path, limit: int) -> None:
    grpc_port, admin_port = unused_ports(2)
    with (
        limited(base, limits={resource.RLIMIT_NOFILE: limit}, admin_port=admin_port, port=grpc_port) as (_, http),
        ExitStack() as stack,
    ):
        for port in (http.base_url.port, grpc_port, admin_port):
            for _ in range(limit):
                with suppress(OSError):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
                    # A request that goes on is not closed in favour of a newer one.
                    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        add_version(base, 2)
        until(lambda: '"2"' in _text(http, "/v1/models/default"))
        until(lambda: _text(http, "/v1/statusz") != "")


def _text(http: httpx.Client, path: str) -> str:
    """Returns an answer's body; "" for an error, or for a connection that is closed in favour of another one."""
    try:
        answer = http.get(path)
    except httpx.TransportError:
        return ""
    return answer.text if answer.status_code == 200 else ""


@pytest.mark.parametrize("limit", [20, 32])
def test_too_few_descriptors_are_an_exit_status(base: Path, limit: int) -> None:
    limiting = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"]
    command = [sys.executable, "-m", "service", f"--model_base_path={base}", "--port=auto", "--rest_api_port=auto"]
    ended = subprocess.run(
        [*limiting, *command], cwd=ROOT, env=environment(), timeout=PATIENCE_S, capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert b"the limit on open files is %d" % limit in ended.stderr


def test_closed_standard_streams(base: Path) -> None:
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    with limited(base, prefix=closing) as (process, http):
        assert lookup(http, [1]) == ROW_1
        assert http.post("/v1/models/default:lookup", json={"features": {"user": [77]}}).status_code == 400
        assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_wrong_flag_with_closed_standard_streams_is_an_exit_status() -> None:
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "service", "--port=x"]
    assert subprocess.run(command, cwd=ROOT, env=environment(), timeout=PATIENCE_S).returncode == 2


@contextmanager
def half_a_processor() -> Iterator[Path]:
    """Makes a control group whose CPU quota is half a processor; skips the test where that is not possible."""
    top = Path("/sys/fs/cgroup")
    is_v2 = (top / "cgroup.controllers").exists()
    group = (top if is_v2 else top / "cpu") / f"embedding-server-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made: NO CPU QUOTA WAS TESTED")
    try:
        quota = group / ("cpu.max" if is_v2 else "cpu.cfs_quota_us")
        if not quota.exists():
            pytest.skip("control groups have no CPU quota here: NO CPU QUOTA WAS TESTED")
        quota.write_text("50000 100000" if is_v2 else "50000")
        yield group
    finally:
        group.rmdir()


def test_half_a_processor_has_one_thread(base: Path) -> None:
    with half_a_processor() as group:
        joining = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        with limited(base, prefix=joining) as (process, http):
            assert lookup(http, [1]) == ROW_1
            assert http.get("/v1/statusz").json()["data_plane"]["threads"] == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
