"""Files, locks, the terminal and other processes: what attree reads from the system and writes to it."""
