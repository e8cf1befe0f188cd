"""The datasets, one file each, and how their files are read."""
