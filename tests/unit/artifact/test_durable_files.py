"""Files and folders are replaced as a whole; what a power cut leaves of them is simulated in tests/unit/loadtest."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.artifact.files import outdated, publish_folder, restore_folders, write_whole


def test_a_file_of_another_writer_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "new" / "1.delta"
    write_whole(file, b"first", is_new=True)
    with pytest.raises(FileExistsError):
        write_whole(file, b"second", is_new=True)
    assert [(path.name, path.read_bytes()) for path in file.parent.iterdir()] == [("1.delta", b"first")]


def test_a_replaced_folder_comes_back_if_the_new_one_never_got_its_name(tmp_path: Path) -> None:
    target, staging = tmp_path / "1", tmp_path / ".fetching-1"
    for folder, text in ((target, "old"), (staging, "new")):
        folder.mkdir()
        (folder / "file").write_text(text)
    target.rename(outdated(target))
    restore_folders(tmp_path)
    assert (target / "file").read_text() == "old"
    publish_folder(staging, target)
    assert [(path.name, (path / "file").read_text()) for path in tmp_path.iterdir()] == [("1", "new")]


def test_a_new_folder_replaces_none(tmp_path: Path) -> None:
    staging, target = tmp_path / "staging", tmp_path / "1"
    for folder in (staging, target):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    with pytest.raises(OSError, match="not empty"):
        publish_folder(staging, target, is_new=True)
    assert (target / "file").read_text() == "1"
    publish_folder(staging, target)
    assert (target / "file").read_text() == "staging"
