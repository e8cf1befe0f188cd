"""What several tests share: graphs, models, brute-force definitions."""
