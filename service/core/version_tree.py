"""Links in a version's folder that lead out of it."""

from __future__ import annotations

import os
from pathlib import Path

from service.core.errors import ArtifactError


def check_links(version: Path) -> None:
    """Raises ArtifactError for a link in a version's folder to what is neither in it nor in the model's.

    Whoever may add a version could else have the server map, and answer from, any file that it can read. The version's
    folder itself may be a link, and versions may share files.
    """
    roots = (version.resolve(), version.absolute().parent.resolve())
    for folder, folders, files in os.walk(version):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() and not any(path.resolve().is_relative_to(root) for root in roots):
                raise ArtifactError(f"{path.relative_to(version)} is a link out of the model's folder")
