"""Errors of an object store's library, as the log and clients read them."""

from __future__ import annotations

import pytest

exceptions = pytest.importorskip("obstore.exceptions", reason="the extra [stores] is not installed")


def told(text: str) -> str:
    """Returns the text that the server has for an error of the library."""
    from service.stores.object_store import _store_error

    return _store_error(exceptions.GenericError(text)).text


def test_the_same_error_has_the_same_text_whenever_it_comes() -> None:
    # The log repeats a problem only when its text changes.
    texts = {
        told(f"Error performing GET https://a/b?sign=1 in {took} - refused") for took in ("1.9ms", "42.68µs", "2s")
    }
    assert texts == {"the store can not be read: Error performing GET https://a/b - refused"}


def test_an_address_without_tls_names_the_variable_that_allows_it() -> None:
    error = "Error performing GET http://127.0.0.1:9/bucket in 1ms - HTTP error: builder error"
    assert told(error).endswith("HTTP error: builder error; http:// needs AWS_ALLOW_HTTP=true")
