"""How graphs come to the training: splits, sampled neighbourhoods, shares of several processes."""
