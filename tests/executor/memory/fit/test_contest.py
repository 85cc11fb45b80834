"""What two sides try: never a step that cannot win, and the fastest of all in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.executor.memory.fit.contest import WORTH_A_TRY, Offer, contest


class ListedSide:
    """Offers steps in the order of a list of (time, promised at least, expected, whether it keeps the budget)."""

    def __init__(self, steps):
        self.steps, self.run = steps, []

    def begin(self):
        pass

    def is_at_work(self):
        return False

    def offer(self):
        if len(self.run) == len(self.steps):
            return None
        time_us, at_least_us, expected_us, keeps = self.steps[len(self.run)]
        return Offer(at_least_us, expected_us, lambda: self.run.append((time_us, keeps)))

    @property
    def best_us(self):
        return min((t for t, keeps in self.run if keeps), default=None)


@st.composite
def sides(draw):
    """Of a side no step takes less than an earlier one promised at least: bounds only rise."""
    found = []
    for _ in range(2):
        bounds = sorted(draw(st.lists(st.floats(1, 100), max_size=4)))
        found.append([(b + draw(st.floats(0, 50)), b, draw(st.floats(0, 100)), draw(st.booleans())) for b in bounds])
    return found


@given(sides())
def test_the_fastest_that_keeps_the_budget_wins_and_nothing_hopeless_is_run(given_sides):
    two = [ListedSide(steps) for steps in given_sides]
    winner = contest(two)
    kept = [time_us for steps in given_sides for time_us, _, _, keeps in steps if keeps]
    assert (winner is None) == (not kept)
    if winner is not None:
        assert min(kept) <= winner.best_us <= min(kept) / WORTH_A_TRY
    for side in two:
        for count in range(len(side.run)):
            # Each step was promising when it was run: no step of its own side before it was below its bound.
            before = [t for t, keeps in side.run[:count] if keeps]
            assert not before or side.steps[count][1] < WORTH_A_TRY * min(before)


def test_the_one_that_promises_more_goes_first_and_spares_the_other():
    slow, quick = ListedSide([(100.0, 90.0, 95.0, True)]), ListedSide([(50.0, 40.0, 60.0, True)])
    assert contest([slow, quick]) is quick
    assert not slow.run
    over = ListedSide([(50.0, 40.0, 60.0, False)])
    assert contest([slow, over]) is slow and over.run and slow.run


class SlowSide(ListedSide):
    """Works out its next offer until the other side has run so many steps, or it is waited for."""

    def __init__(self, steps, other, until):
        super().__init__(steps)
        self.other, self.until = other, until
        self.begun, self.waited = 0, 0

    def begin(self):
        self.begun += 1

    def is_at_work(self):
        return len(self.other.run) < self.until

    def offer(self):
        self.waited += self.is_at_work()
        return super().offer()


def test_what_nothing_is_known_of_is_tried_while_the_other_side_is_at_work():
    other = ListedSide([(60.0, 0.0, 0.0, True), (70.0, 40.0, 30.0, True)])
    slow = SlowSide([(50.0, 45.0, 50.0, True)], other, until=1)
    assert contest([slow, other]) is slow
    assert slow.begun and not slow.waited and other.run[0] == (60.0, True)


def test_what_the_other_side_may_beat_waits_for_it():
    other = ListedSide([(60.0, 55.0, 56.0, True)])
    slow = SlowSide([(50.0, 45.0, 50.0, True)], other, until=1)
    assert contest([slow, other]) is slow and slow.waited and not other.run


def test_the_first_wins_of_two_alike():
    one, other = ListedSide([(50.0, 0.0, 0.0, True)]), ListedSide([(50.0, 0.0, 0.0, True)])
    assert contest([one, other]) is one
    assert contest([]) is None
