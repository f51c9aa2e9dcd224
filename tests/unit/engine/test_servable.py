"""A servable finds signatures, and names a near one if one is absent; a holder counts leases."""

from __future__ import annotations

import pytest

from service.engine.servable import Holder, Servable
from service.errors import SignatureNotFound
from service.types import INIT_SIGNATURE
from tests.unit.engine.fakes import predict_spec, servable


def test_no_name_means_serving_default() -> None:
    assert servable().signature("").name == "serving_default"


@pytest.mark.parametrize(("asked", "named"), [("x", "x"), ("", "serving_default")])
def test_an_unknown_signature_is_named_in_tensorflow_serving_s_words(asked: str, named: str) -> None:
    spec = predict_spec("lookup")
    with pytest.raises(SignatureNotFound, match=rf'^Serving signature key "{named}" not found\.$'):
        Servable("m", 1, {"lookup": spec}, {}).signature(asked)


def test_a_misspelt_signature_is_told_the_nearest_name() -> None:
    with pytest.raises(SignatureNotFound, match=r'^Serving signature key "lokup" not found; did you mean lookup\?$'):
        Servable("m", 1, {"lookup": predict_spec("lookup")}, {}).signature("lokup")


def test_the_signature_that_initializes_the_graph_is_not_suggested() -> None:
    one = Servable("m", 1, {INIT_SIGNATURE: predict_spec(INIT_SIGNATURE)}, {})
    with pytest.raises(SignatureNotFound, match=r'^Serving signature key "__saved_model_init" not found\.$'):
        one.signature("__saved_model_init")


def test_a_retired_holder_gives_no_more_leases_and_keeps_count_of_the_old() -> None:
    holder = Holder(servable())
    assert holder.acquire()
    assert holder.acquire()
    holder.retire()
    assert not holder.acquire()
    assert holder.num_leases == 2
    holder.release()
    holder.release()
    assert holder.num_leases == 0
