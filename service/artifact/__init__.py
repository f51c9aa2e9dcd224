"""Formats on disk that the server and model_export share; imports neither TensorFlow nor other folders."""
