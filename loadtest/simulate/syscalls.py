"""Records what Python code asks of the disk below one folder, makes it fail, or hides it from the record.

The real folder, which lies in memory, answers the code. The recording stands in place of the functions of the module
`os` and of open(), below all code: a file that is written without regard for power cuts is recorded, too.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from loadtest.simulate.disk import Disk, Mark, Names, Resize, Step, Sync, Write

_REAL = {
    name: getattr(os, name)
    for name in "open mkdir rmdir unlink remove rename replace link write pwrite ftruncate fsync fdatasync".split()
}
_real_open = io.open
# Most files that the code of one life may open: more means that it tries something again and again, for ever.
_MAX_OPENS = 20_000


class Endless(AssertionError):
    """The error that the code repeats an operation without end."""


class Killed(BaseException):
    """Stands for kill -9: raised by each call to the disk, from one on."""


class Recorder:
    """The recorder of one life of a program on a folder; a context manager. Concurrency: any thread.

    Args:
      root: an existing folder; its content counts as durable.

    Attributes:
      steps: what was recorded.
    """

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = str(root)
        self.steps: list[Step] = []
        self.base = Disk()
        self._rng = rng
        self._nodes: dict[int, int] = {}
        self._content: dict[int, bytearray] = {}
        self._fails_in: dict[str, int] = {}
        self._full_for = 0
        self._lives_for = -1
        self._kill_behind = ""
        self._num_nodes = 0
        self._num_opens = 0
        self._device = os.stat(root).st_dev
        self._register(self.root)

    def fail(self, what: str, after: int) -> None:
        """Makes the call number `after` from now on fail: "fsync" with EIO; "write" with ENOSPC, and some after it."""
        self._fails_in[what] = after

    def kill(self, after: int, behind: str = "") -> None:
        """Kills the process at its call number `after` from now on; what was written stays, as the kernel lives on.

        Args:
          behind: a kind of step, such as "rename" or "write"; the process ends behind step number `after` of this kind.
        """
        self._lives_for, self._kill_behind = (-1 if behind else after), behind
        self._kill_in = after

    def revive(self) -> None:
        """Starts another process on the same files."""
        self.kill(-1)
        self._full_for = 0
        self._fails_in.clear()

    def _live(self) -> None:
        if self._lives_for > 0:
            self._lives_for -= 1
        elif self._lives_for == 0:
            raise Killed

    def _did(self, kind: str) -> None:
        if kind == self._kill_behind:
            self._kill_in -= 1
            if self._kill_in < 0:
                self._lives_for = 0

    def mark(self, label: str, value: object = None) -> None:
        """Records what the case knows from here on."""
        self.steps.append(Mark(label, value))

    def __enter__(self) -> Recorder:
        for name in _REAL:
            setattr(os, name, getattr(self, f"_{name}"))
        builtins.open = io.open = self._io_open  # type: ignore[assignment]
        self._fast_copy = shutil._USE_CP_SENDFILE  # type: ignore[attr-defined]
        shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name, real in _REAL.items():
            setattr(os, name, real)
        builtins.open = io.open = _real_open
        shutil._USE_CP_SENDFILE = self._fast_copy  # type: ignore[attr-defined]

    def _register(self, path: str) -> int:
        node = self._num_nodes
        self._num_nodes += 1
        self._nodes[os.lstat(path).st_ino] = node
        if os.path.isdir(path):
            names = self.base.folders.setdefault(node, {})
            for name in sorted(os.listdir(path)):
                below = os.path.join(path, name)
                known = self._nodes.get(os.lstat(below).st_ino)
                names[name] = self._register(below) if known is None else known
        else:
            with _real_open(path, "rb") as file:
                self.base.files[node] = file.read()
            self._content[node] = bytearray(self.base.files[node])
        return node

    def _new_node(self, path: str, dir_fd: int | None, is_folder: bool) -> int:
        node = self._num_nodes
        self._num_nodes += 1
        self._nodes[os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_ino] = node
        if not is_folder:
            self._content[node] = bytearray()
        return node

    def _place(self, path: Any, dir_fd: int | None) -> tuple[int, str] | None:
        """Returns the node of the folder of a path, and the path's last name; None outside of the recorded folder."""
        folder, name = os.path.split(os.fspath(path))
        try:
            found = os.stat(folder or os.curdir, dir_fd=dir_fd)
        except OSError:
            return None
        node = self._nodes.get(found.st_ino) if found.st_dev == self._device else None
        return None if node is None else (node, name)

    def _child(self, path: Any, dir_fd: int | None) -> int | None:
        try:
            return self._nodes.get(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_ino)
        except OSError:
            return None

    def _of_fd(self, fd: int) -> int | None:
        found = os.fstat(fd)
        return self._nodes.get(found.st_ino) if found.st_dev == self._device else None

    def _fails(self, what: str) -> bool:
        left = self._fails_in.get(what)
        if left is None:
            return False
        self._fails_in[what] = left - 1
        if left > 0:
            return False
        del self._fails_in[what]
        return True

    def _no_room(self) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _names(self, kind: str, node: int, *effects: tuple[int, str, int | None]) -> None:
        self.steps.append(Names(effects, node, kind))
        self._did(kind)

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & (os.O_CREAT | os.O_TRUNC):
            self._live()
        self._num_opens += 1
        if self._num_opens > _MAX_OPENS:
            raise Endless(f"opens files for ever, {path} the last")
        place = self._place(path, dir_fd) if flags & os.O_CREAT else None
        is_new = place is not None and self._child(path, dir_fd) is None
        if is_new and self._full_for > 0:
            self._full_for -= 1
            raise self._no_room()
        fd: int = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        if place is not None and is_new:
            node = self._new_node(path, dir_fd, is_folder=False)
            self._names("create", node, (*place, node))
        elif flags & os.O_TRUNC and (node_of := self._of_fd(fd)) is not None:
            self._resize(node_of, 0)
        return fd

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._live()
        place = self._place(path, dir_fd)
        _REAL["mkdir"](path, mode, dir_fd=dir_fd)
        if place is not None:
            node = self._new_node(path, dir_fd, is_folder=True)
            self._names("mkdir", node, (*place, node))

    def _removed(self, kind: str, path: Any, dir_fd: int | None) -> None:
        self._live()
        place, child = self._place(path, dir_fd), self._child(path, dir_fd)
        _REAL[kind](path, dir_fd=dir_fd)
        if place is not None and child is not None:
            self._names(kind, child, (*place, None))

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed("unlink", path, dir_fd)

    _remove = _unlink

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed("rmdir", path, dir_fd)

    def _rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self._live()
        begin, end, child = self._place(src, src_dir_fd), self._place(dst, dst_dir_fd), self._child(src, src_dir_fd)
        _REAL["rename"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if begin is None or end is None or child is None:
            return
        self._names("rename", child, (*begin, None), (*end, child))

    _replace = _rename

    def _link(self, src: Any, dst: Any, **more: Any) -> None:
        self._live()
        end, child = self._place(dst, None), self._child(src, None)
        _REAL["link"](src, dst, **more)
        if end is not None and child is not None:
            self._names("link", child, (*end, child))

    def _resize(self, node: int, size: int) -> None:
        content = self._content[node]
        if size == len(content):
            return
        del content[size:]
        content.extend(bytes(size - len(content)))
        self.steps.append(Resize(node, size))

    def _ftruncate(self, fd: int, length: int) -> None:
        node = self._of_fd(fd)
        if node is not None:
            self._live()
        _REAL["ftruncate"](fd, length)
        if node is not None:
            self._resize(node, length)

    def _written(self, fd: int, data: Any, offset: int | None) -> int:
        node, view = self._of_fd(fd), memoryview(data).cast("B")
        if node is None:
            return int(_REAL["write"](fd, view) if offset is None else _REAL["pwrite"](fd, view, offset))
        self._live()
        if self._fails("write"):
            self._full_for = self._rng.randint(1, 4)
        if self._full_for > 0:
            # A disk that is full may take the first bytes.
            self._full_for -= 1
            view = view[: self._rng.randint(0, len(view) - 1)] if len(view) and self._rng.random() < 0.5 else view[:0]
            if not len(view):
                raise self._no_room()
        at = offset
        if at is None:
            at = os.lseek(fd, 0, os.SEEK_CUR)
            if _REAL["write"](fd, view) and os.lseek(fd, 0, os.SEEK_CUR) != at + len(view):
                at = os.lseek(fd, 0, os.SEEK_CUR) - len(view)
        else:
            _REAL["pwrite"](fd, view, at)
        self._note(node, at, bytes(view))
        return len(view)

    def _note(self, node: int, at: int, data: bytes) -> None:
        if data:
            content = self._content[node]
            content.extend(bytes(max(at + len(data) - len(content), 0)))
            content[at : at + len(data)] = data
            self.steps.append(Write(node, at, data))
            self._did("write")

    def _write(self, fd: int, data: Any) -> int:
        return self._written(fd, data, None)

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        return self._written(fd, data, offset)

    def _fsync(self, fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        node = self._of_fd(number)
        if node is None:
            _REAL["fsync"](fd)
            return
        self._live()
        if node in self._content:
            with _real_open(f"/proc/self/fd/{number}", "rb") as file:
                real = file.read()
            if real != self._content[node]:
                # The file was written to through a memory map.
                self._note(node, 0, real)
        if self._fails("fsync"):
            self.steps.append(Sync(node, has_failed=True))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.steps.append(Sync(node))

    _fdatasync = _fsync

    def _io_open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        is_fd = isinstance(file, int)
        is_written = bool(set(mode) & set("wax+"))
        if not is_written or opener or (self._of_fd(file) if is_fd else self._place(file, None)) is None:
            return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        flags = os.O_CLOEXEC | (os.O_RDWR if "+" in mode else os.O_WRONLY)
        flags |= {"w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_APPEND, "x": os.O_CREAT | os.O_EXCL}.get(
            next((one for one in mode if one in "wax"), ""), 0
        )
        fd = file if is_fd else self._open(file, flags, 0o666)
        raw = _RecordedFile(self, fd, "r+" if "+" in mode else ("a" if "a" in mode else "w"), closefd=closefd)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)


class _RecordedFile(io.FileIO):
    def __init__(self, recorder: Recorder, fd: int, mode: str, *, closefd: bool) -> None:
        super().__init__(fd, mode, closefd=closefd)
        self._recorder = recorder

    def write(self, data: Any) -> int:
        """Writes through the recorder."""
        return self._recorder._write(self.fileno(), data)

    def truncate(self, size: int | None = None) -> int:
        """Cuts through the recorder."""
        end = self.tell() if size is None else size
        self._recorder._ftruncate(self.fileno(), end)
        return end
