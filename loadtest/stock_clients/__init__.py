"""Stock clients against a running server, each on its own terms: `python -m loadtest.stock_clients`."""
