"""Defines ExportError, whose message says what went wrong and what to do, and the text for a disk that is full."""

from __future__ import annotations

import errno
import shutil


class ExportError(Exception):
    """Error that ends an export, an import or another command; the command line prints the message."""


# What to do with a Keras model that `export` can not describe.
ADOPT_IT = "a model that export can not describe can be adopted: model.save(DIR), then model-export adopt DIR"


def why(error: Exception) -> str:
    """Returns an error's text, without the number and the path that an OSError's own text has."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# Errors of the system that a user can mend: a full disk, a quota, a limit on the size of a file, a read-only disk.
_OF_DISKS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def disk_fault(error: OSError) -> str | None:
    """Returns one line for an error of a disk that is full or read-only; None for another error.

    All commands write beside their target and rename at the end, so nothing half-written has the target's name.
    """
    if isinstance(error, shutil.Error):
        # shutil.copytree() raises one error for all files: a list of (source, target, text of the error).
        found = [
            (target, text) for _, target, text in error.args[0] for number in _OF_DISKS if f"[Errno {number}]" in text
        ]
        where, reason = found[0] if found else ("", "")
        reason = reason.partition("] ")[2].partition(": ")[0]
    else:
        where, reason = error.filename, error.strerror if error.errno in _OF_DISKS else ""
    if not reason:
        return None
    place = f" ({where})" if where else ""
    return f"{reason}{place}: nothing was written; make room, or write to another disk, and run the command again"
