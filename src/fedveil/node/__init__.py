"""A Flower node's operator's half: what may run there, and that nothing leaves but what the privacy mod made."""
