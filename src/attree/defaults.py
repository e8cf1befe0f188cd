"""The methods, the protocols and the defaults of every evaluation, in one place.

`attree.evaluate`, ExplainCallback and all commands read them here. The module imports nothing, so that the command line
can name them in its help without loading torch.
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

ALL_PROTOCOLS = {
    "coefficient": ("its score before softmax becomes 0; the weights sum to 1 again", {"score_factor": 0.0}),
    "weight": ("the edge's weight becomes 0; the other weights stay as they are", {"weight_factor": 0.0}),
    "removal": ("the edge is deleted; the other weights grow to sum to 1", {"score_shift": float("-inf")}),
}
"""Every reduction protocol by the name that users type: what happens to the edge, and the fields of its
`attree.faithfulness.ReductionProtocol` that say so."""

AUTHORS = "authors"
"""What users may type instead of a protocol: the one that the code of GAtt's authors has for the model."""

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
