"""Feature columns like those of tf.compat.v1.tpu.experimental, whose lookups run on any machine."""
