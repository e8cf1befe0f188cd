"""Look at the explanations of a finished run: `attree explain`."""
