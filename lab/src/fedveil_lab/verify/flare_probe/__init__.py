"""What watches a FLARE simulation from within its processes."""
