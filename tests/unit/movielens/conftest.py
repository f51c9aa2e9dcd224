"""A fixture of the demo's tests: small ratings that every test may read."""

from __future__ import annotations

import pytest

from movielens.ratings import RatingData, synthetic_ratings


@pytest.fixture(scope="session")
def ratings() -> RatingData:
    """Returns a synthetic data set that is smaller than the default one."""
    return synthetic_ratings(num_users=20, num_films=30, num_ratings=400)
