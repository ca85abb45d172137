"""Begins the probe in processes that a site of a FLARE simulation starts: Python imports this by itself."""

import flare_watch  # type: ignore[import-not-found]  # stands beside it

flare_watch.begin()
