"""Several processes as one server. What the supervising process imports is the standard library and settings only."""
