"""Sources of ratings, each normalised to the one canonical form of ratings.py; no TensorFlow here."""
