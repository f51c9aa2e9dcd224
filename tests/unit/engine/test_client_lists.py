"""A client without the right "admin" may name folders beside the served models, and those that the operator opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.engine.model_config import ClientFolders, ModelConfig, RequestLogConfig, with_origin
from service.errors import PermissionDenied


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
