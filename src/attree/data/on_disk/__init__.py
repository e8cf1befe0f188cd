"""Graphs in a folder of `.npy` files, larger than memory: read, written, and cut around targets."""

from attree.data.on_disk.conversion import Conversion, convert
from attree.data.on_disk.graph import OnDiskGraph, write_graph
from attree.data.on_disk.surroundings import Room, Surroundings, TooLargeError, cut_out, joined_cuts

__all__ = [
    "Conversion",
    "OnDiskGraph",
    "Room",
    "Surroundings",
    "TooLargeError",
    "convert",
    "cut_out",
    "joined_cuts",
    "write_graph",
]
