"""The NVIDIA FLARE engine; import `fedveil.nvflare`."""
