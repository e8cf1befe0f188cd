"""The command `attree serve`: a run's page with its live model, only for this computer."""
