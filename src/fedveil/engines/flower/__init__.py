"""Flower engine: the same parties behind Flower's messages; `fedveil.flower` is its front."""
