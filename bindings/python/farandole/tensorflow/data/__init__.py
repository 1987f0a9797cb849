"""Input pipelines that run on other processes, through TensorFlow's data service (`compute_service`,
`compute_worker`)."""
