"""Unit tests: one test file per source file, without sockets or sleeps, with TensorFlow only under the marker `tf`."""
