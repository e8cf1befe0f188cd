"""The datasets, one file each, and the reading of their files."""
