"""Operator's half of a Flower node: what may run there; only replies of the privacy mod leave."""
