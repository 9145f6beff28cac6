"""Results in other people's tools: CSV, TensorBoard, MLflow. Their packages are optional."""
