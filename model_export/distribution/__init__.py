"""Trains in several processes: reads a process's task from TF_CONFIG, makes TensorFlow's strategies, shards tables."""
