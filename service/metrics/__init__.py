"""What the server counts, and the text that Prometheus reads: our names and TensorFlow Serving's over one recording."""
