"""Attention reduction by exact updates of the rows that change."""
