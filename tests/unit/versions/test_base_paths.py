"""Finds versions in a base path, says what is wrong where there is none, and which folders a client may name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from service.errors import PermissionDenied
from service.versions.model_config import (
    ClientFolders,
    Latest,
    ModelConfig,
    RequestLogConfig,
    Specific,
    VersionPolicy,
    fault_of,
    find_versions,
    with_origin,
)

LATEST = Latest()


def test_only_integer_folders_are_versions(tmp_path: Path) -> None:
    for name in ("1", "007", "12.tmp", "-3", "v4", "5 ", "٣", "latest", str(2**63 - 1), str(2**63)):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("a file, not a folder")
    assert sorted(find_versions(tmp_path)) == [1, 7, 2**63 - 1]


def test_a_link_that_can_not_be_followed_now_hides_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name, error = "1", errno.ESTALE

        def is_dir(self) -> bool:
            raise OSError(self.error, os.strerror(self.error))

    @contextmanager
    def scandir(path: Path) -> Iterator[list[Entry]]:
        yield [Entry()]

    monkeypatch.setattr(os, "scandir", scandir)
    for Entry.error in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT):
        with pytest.raises(OSError):
            find_versions(tmp_path)
    for Entry.error in (errno.ELOOP, errno.EACCES):
        assert find_versions(tmp_path) == {}


def fault(path: str | Path, policy: VersionPolicy = LATEST) -> str:
    """Returns the fault that fault_of() finds in a model's base path, "" if there is none."""
    return fault_of(ModelConfig("m", str(path), policy))


def add(base: Path, versions: Iterable[str]) -> None:
    """Makes files, and folders for names that end with a slash."""
    for name in versions:
        path = base / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()


MODEL = "models/movielens/1/saved_model.pb"
GONE = "cannot read the folder {path}: No such file or directory"
FILE = "cannot read the folder {path}: Not a directory"
NONE = "no version folder (an integer name such as 1) in {path}"
MEANT = "; did you mean {base}/models/movielens?"
ITSELF = ", which holds saved_model.pb and so is a version itself"
# Name of a case -> files, the base path below the folder {base}, and the message about the base path {path}.
CASES: dict[str, tuple[list[str], str, str]] = {
    "a version": ([MODEL], "models/movielens", ""),
    # No error: the version may be incomplete yet, and its load reports the reason.
    "a version without a graph": (["m/1/"], "m", ""),
    "missing": ([MODEL], "other/place", GONE),
    "a misspelt name": ([MODEL], "models/movilens", GONE + MEANT),
    "another case": ([MODEL], "models/MovieLens", GONE + MEANT),
    "a misspelt folder above": ([MODEL], "model/movielens", GONE + MEANT),
    "a folder below one that is right": ([MODEL], "models/movielens_/serving", GONE + MEANT),
    "several near names": (
        ["films_a/1/saved_model.pb", "films_b/1/saved_model.pb"],
        "films_c",
        GONE + "; did you mean {base}/films_b or {base}/films_a?",
    ),
    "a near name without a version": (["movielens/export/saved_model.pb"], "movilens", GONE),
    "a version that is not there": ([MODEL], "models/movielens/2", GONE + MEANT),
    "a version itself": ([MODEL], "models/movielens/1", NONE + ITSELF + MEANT),
    "a SavedModel outside a version": (
        ["export/saved_model.pb"],
        "export",
        NONE + ITSELF + "; move its files to a version folder, such as {base}/export/1",
    ),
    "a SavedModel in a folder with a name": (
        ["m/v1/saved_model.pb"],
        "m",
        NONE + "; did you mean to name v1 in that folder by a number?",
    ),
    "the folder above": ([MODEL], "models", NONE + MEANT),
    "the folder above several": (
        [MODEL, "models/films/3/saved_model.pb"],
        "models",
        NONE
        + "; did you mean {base}/models/films or {base}/models/movielens? Several models need a --model_config_file.",
    ),
    "an empty folder": (["m/"], "m", NONE),
    "a graph's file": ([MODEL], MODEL, FILE + MEANT),
    "a list of models": (["models.conf"], "models.conf", FILE + "; did you mean --model_config_file={path}?"),
    "a file": (["m.zip"], "m.zip", FILE),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_says_what_to_do(tmp_path: Path, name: str) -> None:
    files, path, text = CASES[name]
    add(tmp_path, files)
    assert fault(tmp_path / path) == text.format(base=tmp_path, path=tmp_path / path)


@pytest.mark.parametrize("name", [name for name, (_, _, text) in CASES.items() if "did you mean {base}" in text])
def test_the_folder_that_is_suggested_works(tmp_path: Path, name: str) -> None:
    files, path, _ = CASES[name]
    add(tmp_path, files)
    suggested = fault(tmp_path / path).partition("; did you mean ")[2].partition("?")[0].split(" or ")
    assert suggested and [fault(folder) for folder in suggested] == [""] * len(suggested)


NO_STORE = "it is a URI; this server reads mounted folders, and s3://, gs:// and az://"


@pytest.mark.parametrize("scheme", ["ftp", "http", "https", "hdfs"])
def test_a_uri_is_named_as_it_was_given(tmp_path: Path, scheme: str) -> None:
    text = f"cannot read the folder {scheme}://bucket/m: {NO_STORE}"
    assert fault(tmp_path / f"{scheme}://bucket/m") == text
    assert fault(f"{scheme}://bucket/m") == text


@pytest.mark.parametrize("scheme", ["gs", "s3", "az"])
def test_only_the_server_itself_looks_into_a_store(scheme: str) -> None:
    assert fault(f"{scheme}://bucket/m") == ""


@pytest.mark.parametrize("path", ["s3:/bucket/m", "S3://bucket/m", "gs:///m"])
def test_a_misspelt_uri_of_a_store(tmp_path: Path, path: str) -> None:
    scheme = path[:2].lower()
    told = f"cannot read {tmp_path / path}: a place in an object store is written {scheme}://BUCKET/PLACE"
    assert fault(tmp_path / path) == told


def test_a_file_uri_means_its_folder(tmp_path: Path) -> None:
    add(tmp_path, [MODEL])
    told = fault(Path(f"file://{tmp_path}/models/movielens").absolute())
    assert told.endswith(f"{NO_STORE}; did you mean {tmp_path}/models/movielens?")


def test_a_folder_that_is_named_like_a_scheme_is_a_folder(tmp_path: Path) -> None:
    add(tmp_path, ["gs:/m/1/saved_model.pb"])
    assert fault(tmp_path / "gs:/m") == ""
    assert fault(tmp_path / "gs:/n") == f"cannot read the folder {tmp_path}/gs:/n: No such file or directory"


def test_a_policy_that_wants_none_of_them(tmp_path: Path) -> None:
    add(tmp_path, ["1/", "2/"])
    text = f"none of the versions in model_version_policy is in {tmp_path}, which has 1, 2"
    assert fault(tmp_path, Specific(frozenset({9}))) == text
    assert fault(tmp_path, Specific(frozenset({2, 9}))) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir(mode=0)
    assert fault(tmp_path / "m") == f"cannot read the folder {tmp_path}/m: Permission denied"
    assert fault(tmp_path / "m/1") == f"cannot read the folder {tmp_path}/m/1: Permission denied"


def test_a_folder_that_names_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert fault(tmp_path / "loop") == f"cannot read the folder {tmp_path}/loop: Too many levels of symbolic links"


@pytest.fixture
def served(tmp_path: Path) -> dict[str, ModelConfig]:
    """Makes the folders of a served model, of one beside it, and of one elsewhere, and symbolic links to both."""
    for name in ("models/films", "models/news", "models/team/ads", "elsewhere/secret", "elsewhere/linked"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "models" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "models" / "in").symlink_to("news")
    return {"films": ModelConfig("films", str(tmp_path / "models" / "films"))}


def is_open(path: str, served: dict[str, ModelConfig], folders: ClientFolders | None = None, name: str = "new") -> bool:
    """Says whether a client may serve a base path."""
    try:
        (folders or ClientFolders()).check([ModelConfig(name, path)], served)
    except PermissionDenied as error:
        assert path in error.message
        return False
    return True


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("models/news", True),
        ("models/team/ads", True),
        ("models/not-there-yet", True),
        ("models/in", True),
        ("models/news/../films", True),
        ("models", False),
        ("models/", False),
        ("models/.", False),
        ("models/news/..", False),
        ("models/../elsewhere/secret", False),
        ("models/out", False),
        ("models/out/secret", False),
        ("models/in/../../elsewhere/secret", False),
        ("elsewhere/secret", False),
        ("models-of-others/x", False),
    ],
)
def test_base_paths_lie_beside_a_served_model(
    tmp_path: Path, served: dict[str, ModelConfig], path: str, expected: bool
) -> None:
    assert is_open(f"{tmp_path}/{path}", served) is expected


def test_the_operator_may_open_one_more_folder(tmp_path: Path, served: dict[str, ModelConfig]) -> None:
    folders = ClientFolders(model_root=str(tmp_path / "elsewhere"))
    assert is_open(f"{tmp_path}/elsewhere/secret", served, folders)
    assert is_open(f"{tmp_path}/models/out/secret", served, folders) is False, "as written it lies in no open folder"
    (tmp_path / "opened").symlink_to(tmp_path / "elsewhere")
    linked = ClientFolders(model_root=str(tmp_path / "opened"))
    assert is_open(f"{tmp_path}/opened/secret", served, linked)
    assert is_open(f"{tmp_path}/elsewhere/secret", served, linked)


def test_a_model_in_the_root_folder_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "top").symlink_to("/")
    for base_path in ("/films", "//films", f"{tmp_path}/top/films"):
        served = {"films": ModelConfig("films", base_path)}
        assert is_open("/etc/x", served) is False
        assert is_open(base_path, served, name="films"), "an unchanged base path stays"
        assert is_open(base_path + "2", served, name="films") is False


def test_places_in_a_store_lie_beside_a_served_model() -> None:
    served = {"films": ModelConfig("films", "s3://bucket/models/films")}
    for path in ("s3://bucket/models/news", "s3://bucket/models/team/ads/"):
        assert is_open(path, served)
    for path in ("s3://bucket/x", "s3://bucket/models", "s3://other/models/x", "gs://bucket/models/x"):
        assert is_open(path, served) is False
    assert is_open("s3://bucket/models/../x", served) is False
    assert is_open("s3://bucket", {"films": ModelConfig("films", "s3://other")}) is False
    assert is_open("s3://other/x", served, ClientFolders(model_root="s3://other"))


def logging(name: str, base_path: str, prefix: str) -> ModelConfig:
    return ModelConfig(name, base_path, request_log=RequestLogConfig(prefix, 1.0))


def test_request_logs_lie_below_the_folder_for_them(tmp_path: Path, served: dict[str, ModelConfig]) -> None:
    films = served["films"].base_path
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "out").symlink_to(tmp_path / "elsewhere")
    for folders in (ClientFolders(), ClientFolders(request_log_root=str(logs))):
        for prefix in ("", "x", "/x", f"{logs}", f"{logs}/", f"{logs}/../x", f"{logs}/out/x", f"{films}/1/x"):
            with pytest.raises(PermissionDenied, match=r"--request_log_root\.$") as caught:
                folders.check([logging("films", films, prefix)], served)
            assert str(tmp_path) not in caught.value.message
    ClientFolders(request_log_root=str(logs)).check([logging("films", films, f"{logs}/films")], served)
    # A log that the operator has configured goes on, at another rate, too.
    kept = {"films": logging("films", films, "/var/log/films")}
    ClientFolders().check([logging("films", films, "/var/log/films")], kept)
    with pytest.raises(PermissionDenied):
        ClientFolders().check([logging("films", films, "/var/log/films2")], kept)


def test_a_model_keeps_the_most_trusted_origin_of_its_base_path() -> None:
    config = ModelConfig("films", "/models/films")
    assert with_origin([config], {}, "client") == (replace(config, origin="client"),)
    for before, by, after in (
        ("operator", "client", "operator"),
        ("operator", "admin", "operator"),
        ("client", "client", "client"),
        ("client", "admin", "admin"),
        ("client", "operator", "operator"),
        ("admin", "client", "admin"),
    ):
        served = {"films": replace(config, origin=before)}  # type: ignore[arg-type]
        (found,) = with_origin([config], served, by)  # type: ignore[arg-type]
        assert found.origin == after
    moved = replace(config, base_path="/models/films2")
    assert with_origin([moved], {"films": config}, "client")[0].origin == "client"
