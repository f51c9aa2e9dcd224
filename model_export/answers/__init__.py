"""Answers of an artifact, by its own graphs in TensorFlow and by the server's code; requests at the edges of both."""
