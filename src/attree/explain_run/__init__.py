"""The command `attree explain`: explanations of a finished run, as a dataset, figures and a page."""
