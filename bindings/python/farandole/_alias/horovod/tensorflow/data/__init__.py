"""`horovod.tensorflow.data`: the modules `compute_service` and `compute_worker`, Farandole's own."""
