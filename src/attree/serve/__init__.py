"""`attree serve`: a run's page with the live model behind it, on this computer alone."""
