"""Shows a folder through a file system of this process, whose reads wait as those of a hung disk, or that fails.

Source: fuse(4), struct fuse_in_header and the others of include/uapi/linux/fuse.h (Linux 6.18).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MNT_DETACH = 1, 2
_IN = struct.Struct("<IIQQIIIHH")
# Seconds for which the kernel may keep attributes and names: longer than any test.
_ALWAYS_S = 3600
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 18, 25, 26
_OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 27, 28, 29, 36, 42


class NoHungDisk(Exception):
    """Raised if this process can not mount a file system; the message says why."""


class HungDisk:
    """A read-only view of a folder at `mount`: reads of a file at `hangs_from` or behind wait until release().

    The `with` block unmounts it. Files of at most hangs_from bytes are read as usual.

    error: returns the number of the error with which a request about a path fails, and 0 for none; takes the path, and
      whether the request reads a file.

    Args:
      valid_s: seconds for which the kernel may keep attributes and names.

    Raises:
      NoHungDisk: the system has no FUSE, or lets this process mount nothing.
    """

    def __init__(self, folder: Path, mount: Path, hangs_from: int, valid_s: int = _ALWAYS_S) -> None:
        self.mount = mount
        self.error: Callable[[Path, bool], int] = lambda path, is_read: 0
        self._valid_s = valid_s
        self._hangs_from = hangs_from
        # The paths of nodes; node 1 is the root.
        self._nodes = [mount, folder]
        self._numbers = {folder: 1}
        self._held: list[tuple[int, bytes]] = []
        self._is_released = False
        self._lock = threading.Lock()
        mount.mkdir()
        try:
            self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NoHungDisk(f"/dev/fuse can not be opened: {error.strerror}") from error
        options = f"fd={self._device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        if _libc.mount(b"hung", bytes(mount), b"fuse", _MS_RDONLY, options.encode()):
            os.close(self._device)
            raise NoHungDisk(f"a file system can not be mounted: {os.strerror(ctypes.get_errno())}")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def num_held(self) -> int:
        """How many reads wait now."""
        return len(self._held)

    def release(self) -> None:
        """Answers all reads that wait, and lets no later read wait."""
        with self._lock:
            self._is_released, held, self._held = True, self._held, []
        for unique, data in held:
            self._reply(unique, data)

    def __enter__(self) -> HungDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        _libc.umount2(bytes(self.mount), _MNT_DETACH)
        self._thread.join()
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            body = request[_IN.size :]
            try:
                self._handle(opcode, unique, node, body)
            except OSError as error:
                self._reply(unique, b"", error.errno or errno.EIO)

    def _handle(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return
        if opcode == _INIT:
            _, _, readahead, _ = struct.unpack_from("<IIII", body)
            # Flags: FUSE_ASYNC_READ. So many reads may wait that those which wait keep no others from being sent.
            data = struct.pack("<IIIIHHIIHHI28x", 7, 31, readahead, 1, 60000, 60000, 1 << 17, 1, 32, 0, 0)
            self._reply(unique, data)
        elif number := self.error(self._nodes[node], opcode == _READ):
            self._reply(unique, b"", number)
        elif opcode == _LOOKUP:
            path = self._nodes[node] / os.fsdecode(body.rstrip(b"\0"))
            number = self._numbers.get(path, len(self._nodes))
            data = struct.pack("<QQQQII", number, 0, self._valid_s, self._valid_s, 0, 0) + self._attributes(
                path, number
            )
            if number == len(self._nodes):
                self._nodes.append(path)
                self._numbers[path] = number
            self._reply(unique, data)
        elif opcode == _GETATTR:
            self._reply(unique, struct.pack("<QII", self._valid_s, 0, 0) + self._attributes(self._nodes[node], node))
        elif opcode in (_OPEN, _OPENDIR):
            # The flag FOPEN_KEEP_CACHE: else each open drops the file's pages, and waits for those that are being read.
            self._reply(unique, struct.pack("<QII", node, 2, 0))
        elif opcode == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            with self._nodes[node].open("rb") as file:
                data = os.pread(file.fileno(), size, offset)
            with self._lock:
                is_held = offset + size > self._hangs_from and not self._is_released
                if is_held:
                    self._held.append((unique, data))
            if not is_held:
                self._reply(unique, data)
        elif opcode == _READDIR:
            _, offset, _ = struct.unpack_from("<QQI", body)
            self._reply(unique, self._entries(self._nodes[node], offset))
        elif opcode in (_RELEASE, _RELEASEDIR, _FLUSH):
            self._reply(unique, b"")
        else:
            self._reply(unique, b"", errno.ENOSYS)

    def _entries(self, folder: Path, offset: int) -> bytes:
        found = b""
        for place, name in enumerate(sorted(os.listdir(folder))[offset:], offset + 1):
            octets = os.fsencode(name)
            entry = struct.pack("<QQII", place, place, len(octets), 0) + octets
            found += entry + bytes(-len(entry) % 8)
        return found

    def _attributes(self, path: Path, number: int) -> bytes:
        found = path.stat()
        seconds, nanos = divmod(found.st_mtime_ns, 10**9)
        times = (seconds, seconds, seconds, nanos, nanos, nanos)
        blocks = -(-found.st_size // 512)
        rest = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0)
        return struct.pack("<6Q10I", number, found.st_size, blocks, *times, *rest)

    def _reply(self, unique: int, data: bytes, error: int = 0) -> None:
        try:
            os.write(self._device, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)
        except OSError as failed:
            # The kernel no longer waits for a request of a process that has ended.
            if failed.errno not in (errno.ENOENT, errno.ENODEV):
                raise
