"""Runs TensorFlow graphs. Only this folder of the server imports TensorFlow, and only when a graph must run."""
