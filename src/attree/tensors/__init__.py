"""Helpers for tensors: ragged arrays, checks of edge lists, memory budgets and floating-point precision."""
