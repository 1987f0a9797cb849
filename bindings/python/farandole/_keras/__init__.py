"""What `farandole.keras` and `farandole.tensorflow.keras` share.

Nothing here imports a framework when it is imported. `optimizer3` is for Keras 3 on any backend, `optimizer2` for Keras
2 (tf_keras, or Keras 2 under its own name). What touches a framework's tensors is in `reduce_tensorflow`,
`reduce_torch` and `reduce_jax`, and is loaded for the backend at hand only.
"""
