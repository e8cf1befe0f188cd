"""All methods and protocols, and the defaults of every evaluation.

`attree.evaluate`, ExplainCallback and all commands use these defaults. The module imports nothing, so that the command
line can name them in its help without loading torch.
"""

ALL_METHODS = {
    "gatt": ("GAtt", "attree.attribution.gatt.GAtt"),
    "gatt_sim": ("GAtt-sim", "attree.attribution.gatt.GAttSim"),
    "gatt_avg": ("GAtt-avg", "attree.attribution.gatt.GAttAvg"),
    "avgatt": ("AvgAtt", "attree.attribution.baselines.AvgAtt"),
    "uniform": ("Uniform", "attree.attribution.baselines.Uniform"),
    "structure": ("Structure", "attree.attribution.baselines.Structure"),
    "occlusion": ("Occlusion", "attree.faithfulness.occlusion.Occlusion"),
    "attention_gradient": ("Attention gradient", "attree.faithfulness.first_order.AttentionGradient"),
    "message_gradient": ("Message gradient", "attree.faithfulness.first_order.MessageGradient"),
    "saliency": ("Saliency", "attree.attribution.posthoc.Saliency"),
    "guided_backprop": ("Guided Backprop", "attree.attribution.posthoc.GuidedBackprop"),
    "integrated_gradients": ("Integrated Gradients", "attree.attribution.posthoc.IntegratedGradients"),
    "gnn_explainer": ("GNNExplainer", "attree.attribution.posthoc.GNNExplainer"),
    "pg_explainer": ("PGExplainer", "attree.attribution.posthoc.PGExplainer"),
    "graph_mask": ("GraphMask", "attree.attribution.posthoc.GraphMask"),
    "fastdnx": ("FastDnX", "attree.attribution.posthoc.FastDnX"),
    "random": ("Random", "attree.attribution.baselines.Random"),
}
"""Label and class of every attribution method, by the name that users type, in the order of tables."""

ALL_PROTOCOLS = {
    "coefficient": ("its score before softmax becomes 0; the weights sum to 1 again", {"score_factor": 0.0}),
    "weight": ("the edge's weight becomes 0; the other weights stay as they are", {"weight_factor": 0.0}),
    "removal": ("the edge is deleted from the graph", {"score_shift": float("-inf")}),
}
"""Every reduction protocol, by the name that users type: what happens to the edge, and the arguments of its
`attree.faithfulness.ReductionProtocol`."""

AUTHORS = "authors"
"""Name that users may type instead of a protocol: it selects the protocol that GAtt's authors use for the model."""

METHODS = ("gatt", "avgatt", "uniform", "random")
"""Attribution methods that are compared by default."""

ANY_NETWORK_METHODS = ("structure", "occlusion", "message_gradient", "saliency", "random")
"""Attribution methods that are compared by default if a network has no attention."""

GLOBAL_ATTENTION_METHODS = ("gatt", "uniform", "occlusion", "saliency", "random")
"""Attribution methods that are compared by default if a network attends over all nodes, but not along edges."""

UNTRACED_METHODS = ("occlusion", "message_gradient", "saliency", "random")
"""Attribution methods that are compared by default if the layers of a network form no computation tree."""

POOLED_METHODS = ("occlusion", "random")
"""Attribution methods that are compared by default if layers run on other nodes or edges than those of the data."""

CHEAP_METHODS = ("occlusion",)
"""Methods that are also compared by default if the exact engine serves the model, which makes them cheap."""

PROTOCOLS = ("removal", "weight")
"""Reduction protocols that are measured by default; tables and verdicts begin with the first."""

RESOLUTION = 1e-9
"""Smallest effect of an edge that counts. Effects are rounded to multiples of it, so that smaller ones are 0 and equal
ones are equal numbers, whatever the engine or the number of threads; see `attree.tensors.precision.resolution`."""

RESOLUTION_FLOAT32 = 1e-4
"""The same where a model runs in float32, because its device or its code has no float64. Both keep about three fifths
of the digits of their type, 9 of 16 and 4 of 7: the others are left to the rounding errors of the layers."""
MAX_LAYERS = 1000
"""Most layers of a network or dataset that attree makes. A config that asks for millions would hang."""

MAX_SIZE = 2**31 - 1
"""Most nodes, channels or heads of what attree makes: pairs of nodes are numbered in 64 bits."""

NUM_TARGETS = 100
"""Number of random targets that are drawn by default."""

RANDOM_DRAWS = 3
"""Number of draws over which the statistics of random methods are averaged."""

SEED = 0
"""Seed of drawn targets and of random methods."""
