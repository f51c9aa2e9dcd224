"""Requests kept on disk as TensorFlow Serving keeps them; nothing here may hold up or fail a request."""
