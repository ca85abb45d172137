"""Client inference: attacks that find out whether a certain client takes part.

Each class is one attack, and documents its source, needs and equation. Attacks in `rounds` score every round alone.
Those in `weighing` combine such scores by likelihoods (`evidence`) learnt from rehearsals. Register your own attack
with ``@ATTACKS.register(name)``; `fedveil audit --attack NAME` then plays it.
"""
