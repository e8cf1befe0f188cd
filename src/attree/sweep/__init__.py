"""Many ordinary fits from one file: planned, run, and summed up in a table and a figure."""
