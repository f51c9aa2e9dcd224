"""Computes the rating tower's answers in numpy; written from the formula in demo/tower.py, not from its code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def predicted(tower: Mapping[str, np.ndarray], vectors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Computes [B] float64 ratings from each feature's [B, D] vectors; tower: the tower's variables by name."""
    user, film, recent = vectors["user_id"], vectors["film_id"], vectors["recent_films"]
    x = np.concatenate([user, film, recent, vectors["genres"], vectors["occupation"]], axis=1)
    for depth in range(sum(name.startswith("hidden/") and name.endswith("/kernel") for name in tower)):
        x = np.maximum(x @ tower[f"hidden/{depth}/kernel"] + tower[f"hidden/{depth}/bias"], 0)
    x = (x @ tower["output/kernel"] + tower["output/bias"])[:, 0]
    taste = user[:, 1:] + recent @ tower["taste"]
    rating = tower["mean_rating"] + user[:, 0] + film[:, 0] + (taste * film[:, 1:]).sum(axis=1) + x
    low, high = tower["rating_range"]
    return np.clip(rating, low, high)
