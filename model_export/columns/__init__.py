"""Feature columns with the arguments of tf.compat.v1.tpu.experimental's, and lookups that run on any machine."""
