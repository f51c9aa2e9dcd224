"""Statistics of the ids that training looks up: numpy only, for any training loop."""
