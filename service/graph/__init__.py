"""Runs TensorFlow graphs: the only folder of the server that imports TensorFlow, and only when a graph must run."""
