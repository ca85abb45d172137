"""What came of a round that was asked more than once."""

from fedveil.engines.answers import Collected


def test_who_was_missing_is_known_by_the_last_question_that_was_put_to_each():
    first = Collected(
        {0: (), 1: ()},
        failed={2: "slow", 3: "gone", 4: "slow"},
        refused={5: "no", 6: "no", 7: "no"},
    )
    later = Collected(
        {0: (), 2: ()}, failed={1: "gone", 6: "gone"}, refused={4: "no more", 7: "no"}
    )
    both = first.followed_by(later)
    assert both.replies.keys() == {0, 2}
    assert both.failed == {1: "gone", 3: "gone", 6: "gone"}
    assert both.refused == {4: "no more", 5: "no", 7: "no"}


def test_nobody_who_is_missing_twice_over_is_lost():
    twice = Collected({0: ()}, failed={1: "is not connected"}, refused={1: "no"})
    both = twice.followed_by(twice)
    assert 1 in {**both.failed, **both.refused}
