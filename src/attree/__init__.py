"""attree: train attention GNNs and measure, while they train, how well their attention explains them."""

__version__ = "0.1.0"
