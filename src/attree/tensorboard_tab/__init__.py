"""A tab in TensorBoard: explanation quality and accuracy of all runs, and the explanations of each run."""
