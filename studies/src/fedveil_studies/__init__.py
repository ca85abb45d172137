"""FedVeil's laboratory: studies that reproduce papers, and the data, networks and presets that only they use."""
