"""The methods and the defaults of every evaluation, in one place: `attree.evaluate`, ExplainCallback and all commands.

The module imports nothing, so that the command line can name them in its help without loading torch.
"""

ALL_METHODS = {
    "gatt": ("GAtt", "attree.attribution.gatt.GAtt"),
    "gatt_sim": ("GAtt-sim", "attree.attribution.gatt.GAttSim"),
    "gatt_avg": ("GAtt-avg", "attree.attribution.gatt.GAttAvg"),
    "avgatt": ("AvgAtt", "attree.attribution.baselines.AvgAtt"),
    "uniform": ("Uniform", "attree.attribution.baselines.Uniform"),
    "occlusion": ("Occlusion", "attree.effects.occlusion.Occlusion"),
    "attention_gradient": ("Attention gradient", "attree.effects.attention_gradient.AttentionGradient"),
    "saliency": ("Saliency", "attree.attribution.posthoc.Saliency"),
    "guided_backprop": ("Guided Backprop", "attree.attribution.posthoc.GuidedBackprop"),
    "integrated_gradients": ("Integrated Gradients", "attree.attribution.posthoc.IntegratedGradients"),
    "gnn_explainer": ("GNNExplainer", "attree.attribution.posthoc.GNNExplainer"),
    "pg_explainer": ("PGExplainer", "attree.attribution.posthoc.PGExplainer"),
    "graph_mask": ("GraphMask", "attree.attribution.posthoc.GraphMask"),
    "fastdnx": ("FastDnX", "attree.attribution.posthoc.FastDnX"),
    "random": ("Random", "attree.attribution.baselines.Random"),
}
"""Every attribution method by the name that users type, in the order of tables: its label and its class."""

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
