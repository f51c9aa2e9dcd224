"""No wire format, no TensorFlow, no environment: numbers and callables come in as arguments."""
