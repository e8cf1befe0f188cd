"""Graphs in a folder of `.npy` files, larger than memory: read, written, and cut around targets."""

from attree.data.on_disk.cut import Cut, Room, TooLargeError, cut
from attree.data.on_disk.graph import OnDiskGraph
from attree.data.on_disk.write import write_graph

__all__ = ["Cut", "OnDiskGraph", "Room", "TooLargeError", "cut", "write_graph"]
