"""Plain files are read, also through links; pipes, devices and folders in their place are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.artifact.files import read_plain_file


def test_a_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to("file")
    assert read_plain_file(tmp_path / "file") == read_plain_file(tmp_path / "link") == b"bytes"


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (tmp_path / "link", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(OSError, match=f"it is {kind}, expected a file"):
            read_plain_file(path)


def test_what_can_not_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(IsADirectoryError):
        read_plain_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_plain_file(tmp_path / "absent")
    with pytest.raises(OSError, match="symbolic links"):
        read_plain_file(tmp_path / "loop")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_plain_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes, the most that are read"):
        read_plain_file(path, 4)
    # A file without contents of its own has the size 0, however much can be read from it.
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_plain_file(Path("/proc/self/maps"), 4)
