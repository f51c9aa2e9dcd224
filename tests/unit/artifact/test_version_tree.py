"""Checks which links a version's folder may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.artifact.completeness import check_tree
from service.errors import ArtifactError


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m" / "1"
    (folder / "variables").mkdir(parents=True)
    (folder / "assets").mkdir()
    (folder / "variables" / "data").write_text("data")
    (tmp_path / "secret").write_text("secret")
    return folder


def test_links_within_the_models_folder_are_taken(version: Path) -> None:
    (version / "assets" / "same").symlink_to("../variables/data")
    (version.parent / "shared").mkdir()
    (version / "assets" / "shared").symlink_to("../../shared")
    check_tree(version)
    (version / "assets" / "shared").unlink()
    # The version folder is itself a symbolic link, as some deployment tools make it.
    linked = version.parent.parent.parent / "served" / "m" / "7"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(version)
    check_tree(linked)


@pytest.mark.parametrize("target", ["{}/secret", "../../../../secret", "/etc", "{}/models/other/absent"])
@pytest.mark.parametrize("where", ["assets/link", "variables/deep", "link"])
def test_a_link_elsewhere_is_refused(version: Path, tmp_path: Path, target: str, where: str) -> None:
    (version / where).symlink_to(
        target.format(tmp_path) if where != "link" else target.format(tmp_path).replace("../", "", 1)
    )
    with pytest.raises(ArtifactError, match=f"{where} is a link out of"):
        check_tree(version)
