"""Names of remote tables, from the flag and from the list of models, choose tables; others are refused."""

from __future__ import annotations

import pytest

from service.engine.model_config import ModelConfig
from service.errors import ArtifactError
from service.loading.remote_tables import RemoteNames, unserved_models
from service.remote.address import remote_tables


def names(flag: str, **models: tuple[str, ...]) -> RemoteNames:
    """Returns the remote names that a flag and the remote_tables of each listed model give."""
    found = RemoteNames(remote_tables(flag))
    found.configure([ModelConfig(name, f"/{name}", remote_tables=own) for name, own in models.items()])
    return found


def test_the_list_goes_before_the_model_and_the_model_before_all_models() -> None:
    found = names("user=valkey://all;m/user=valkey://m;film=valkey://all", m=(), n=("user=valkey://own",))
    addresses = {model: found.addresses_of(model, ["user", "film", "tag"]) for model in ("m", "n")}
    assert {model: {table: str(one) for table, one in of.items()} for model, of in addresses.items()} == {
        "m": {"user": "m:6379", "film": "all:6379"},
        "n": {"user": "own:6379", "film": "all:6379"},
    }


@pytest.mark.parametrize(
    ("flag", "own", "text"),
    [
        (
            "usr=valkey://a",
            (),
            "--remote_tables names table 'usr', which no model has; did you mean user?; tables: film, user",
        ),
        (
            "m/usr=valkey://a",
            (),
            "--remote_tables names table 'usr', which model 'm' does not have; did you mean user?",
        ),
        (
            "",
            ("flim=valkey://a",),
            "remote_tables of model 'm' names table 'flim', which model 'm' does not have; did you",
        ),
    ],
)
def test_a_name_of_no_table_is_an_error_with_a_near_name(flag: str, own: tuple[str, ...], text: str) -> None:
    with pytest.raises(ArtifactError) as told:
        names(flag, m=own).addresses_of("m", ["user", "film"])
    assert told.value.message.startswith(text)


def test_another_model_may_have_the_table_until_all_were_opened() -> None:
    found = names("tag=valkey://a;other=valkey://b", m=(), n=())
    assert found.addresses_of("m", ["user"]) == {}
    with pytest.raises(ArtifactError, match="names table 'other', which no model has; tables: tag, user"):
        found.addresses_of("n", ["tag"])
    assert [*names("tag=valkey://a", m=(), n=()).addresses_of("n", ["tag"])] == ["tag"]


def test_a_model_that_left_the_list_has_no_tables() -> None:
    found = names("tag=valkey://a", m=(), n=())
    found.addresses_of("m", ["tag"])
    found.configure([ModelConfig("n", "/n")])
    with pytest.raises(ArtifactError, match="which no model has"):
        found.addresses_of("n", ["user"])


def test_a_model_that_is_not_served_is_named_with_a_near_one() -> None:
    flag = remote_tables("movielens/user=valkey://a;film=valkey://b")
    assert unserved_models(flag, ["movielens"]) == ""
    assert unserved_models(flag, ["movielenz", "x"]) == (
        "--remote_tables names model 'movielens', which is not served; did you mean movielenz?; served: movielenz, x"
    )
