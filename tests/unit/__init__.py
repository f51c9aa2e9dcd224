"""One test file per source file; no socket, no sleep, TensorFlow only under the marker `tf`."""
