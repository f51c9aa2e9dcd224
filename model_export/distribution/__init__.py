"""Trains in several processes: reads a process's part from TF_CONFIG, makes strategies of TensorFlow, shards tables."""
