"""A run on disk: its folder, its config, its checkpoint, and how it is opened again."""
