"""The hot path: signatures executed on mapped tables; never imports TensorFlow."""
