"""Models, versions, leases, validation, admission and batching; knows no wire, TensorFlow or environment."""
