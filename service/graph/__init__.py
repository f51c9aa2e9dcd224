"""The only folder that imports TensorFlow, and only when a graph must run."""
