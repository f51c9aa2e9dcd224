"""Reads and writes file formats that the server and model_export share; imports no TensorFlow and no other folder."""
