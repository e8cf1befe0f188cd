"""The command `attree sweep`: fit one config many times, with different settings and seeds, and summarise the runs."""
