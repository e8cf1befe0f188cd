"""A tab in TensorBoard: explanation quality beside accuracy over all runs, and the explanations of each."""
