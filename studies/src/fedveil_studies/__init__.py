"""Studies that reproduce papers with FedVeil, and the data sets, networks and presets that only they use."""
