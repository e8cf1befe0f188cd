"""Tensors: ragged arrays, edge lists, memory budgets and precision, which everything else stands on."""
