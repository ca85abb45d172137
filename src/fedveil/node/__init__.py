"""Flower node of an operator: which code may run there, its isolation, and checks of the site."""
