"""Flower engine: server and clients of a federation behind Flower's messages. Import `fedveil.flower`."""
