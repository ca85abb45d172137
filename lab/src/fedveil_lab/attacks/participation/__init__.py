"""Client inference: whether a certain client takes part.

Each class is one attack, with its source, its needs, and the equation by which it scores. `rounds` holds attacks that
score every round by itself. Those of `weighing` weigh such scores by the `evidence` of rehearsals. An attack of yours
joins with ``@ATTACKS.register(name)``; `fedveil audit --attack NAME` then plays it.
"""
