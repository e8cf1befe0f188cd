"""Splits into training, validation and test nodes, neighbour sampling, and sharding over processes."""
