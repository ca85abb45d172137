"""The study's app bundle."""
