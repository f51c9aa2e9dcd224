"""Checks a version's folder, before it is read, for pipes, sockets, devices and links out of the model's folder."""

from __future__ import annotations

import os
from pathlib import Path

from service.artifact.plain_file import strange_kind
from service.errors import ArtifactError


def check_tree(version: Path) -> None:
    """Raises ArtifactError if a version has a link that leads out of the model's folder, a pipe, a socket or a device.

    Without the check for links, a user who may add a version could make the server answer from any file that the server
    can read. The version's folder itself may be a link, and versions may share files. Without the check for pipes,
    TensorFlow would wait for a pipe's writer for ever.
    """
    roots = [os.path.realpath(version), os.path.realpath(version.absolute().parent)]
    for folder, folders, files in os.walk(version):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() and not any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots):
                raise ArtifactError(f"{path.relative_to(version)} is a link out of the model's folder")
            try:
                kind = strange_kind(os.stat(path))
            except OSError:
                # A symbolic link to a missing file in a version's folder is an error only if the server reads the file.
                continue
            if kind:
                raise ArtifactError(f"{path.relative_to(version)} is {kind}, expected a file")
