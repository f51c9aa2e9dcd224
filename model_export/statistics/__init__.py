"""Collects statistics of the ids that a training looks up, with numpy only, for any training loop."""
