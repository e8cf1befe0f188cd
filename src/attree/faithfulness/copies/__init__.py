"""Attention reduction by forward passes over copies of subgraphs."""
