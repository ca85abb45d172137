"""NVIDIA FLARE engine: server and sites of a federation behind FLARE's tasks and filters. Import `fedveil.nvflare`."""
