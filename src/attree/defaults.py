"""Defaults of every evaluation, in one place: `attree.evaluate`, ExplainCallback and the commands all read them here.

The module imports nothing, so that the command line can show the defaults in its help without loading torch.
"""

METHODS = ("gatt", "avgatt", "uniform", "random")
"""The attribution methods that are compared where the user names none."""

CHEAP_METHODS = ("occlusion",)
"""Those that are compared too where edges are reduced by exact updates, which makes them cheap."""

PROTOCOLS = ("weight", "removal")
"""The reduction protocols that are measured where the user names none."""

NUM_TARGETS = 100
"""How many targets are drawn at random where the user names none."""

RANDOM_DRAWS = 3
"""Over how many draws the statistics of random methods are averaged."""

SEED = 0
"""Seed of drawn targets, of methods that draw and of resampling."""

RESAMPLES = 200
"""How often targets are resampled for the interval of a statistic."""
