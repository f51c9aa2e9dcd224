"""Collects statistics of the ids that a training looks up. It needs only numpy and works in any training loop."""
