"""Client inference: whether a certain client takes part.

Each class is one attack: whom it follows, what it needs, and by which equation it scores. `rounds` holds
those that score every round by itself, `weighing` those that weigh such scores by the `evidence` of rehearsals. An
attack of yours joins with ``@ATTACKS.register(name)``; `fedveil audit --attack NAME` then plays it.
"""
