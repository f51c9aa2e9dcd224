"""Expected answers of every signature, and the checks of an artifact against them."""
