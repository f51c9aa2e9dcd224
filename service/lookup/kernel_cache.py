"""Where compiled kernels are kept, so that a server starts in a second and not in ten.

numba stores machine code in a folder that it must be able to write. An image ships that folder, but a container with a
read-only root can not write it; then it is copied (some 2 MB) to a temporary folder first.
service.compile_kernels fills it while an image is built.

Code is compiled for what all processors of some ten years have (x86-64-v3: AVX2, FMA, F16C), so that what was stored on
one machine is good on another, an image's above all; an older processor gets code of its own.

numba looks at the file of a kernel alone to tell whether what it stored is still good, and not at those that were
compiled into it. So each state of the sources has a sub-folder of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import numba

# All that kernels are compiled from.
_SOURCES = ("lookup", "direct")
_COMMON = "x86-64-v3"
# By Linux' names.
_COMMON_FLAGS = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})


def use(folder: Path) -> Path:
    """Makes numba keep compiled kernels in a folder; call before service.lookup.kernels is imported.

    Returns:
      The folder used: a sub-folder of the one asked for, or a writable copy of it in the system's temporary folder.
    """
    writable = folder = folder / _state_of_sources()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        # A new folder each time: nobody else can have put code there for us to run.
        writable = Path(tempfile.mkdtemp(prefix="kernels-"))
        if folder.is_dir():
            shutil.copytree(folder, writable, dirs_exist_ok=True)
    numba.config.CACHE_DIR = str(writable)  # type: ignore[attr-defined]
    if _has_common_flags(Path("/proc/cpuinfo")):
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = _COMMON, ""  # type: ignore[attr-defined]
    return writable


def is_filled(folder: Path) -> bool:
    """Whether a folder that `use` returned holds compiled code already."""
    return any(folder.rglob("*.nbc"))


def _has_common_flags(file: Path) -> bool:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return False
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    return flags >= _COMMON_FLAGS


def _state_of_sources() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for name in _SOURCES:
        for file in sorted((Path(__file__).parents[1] / name).glob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
