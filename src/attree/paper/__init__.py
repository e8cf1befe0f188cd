"""The command `attree paper`: make the paper's tables and figures, with the printed numbers beside them."""
