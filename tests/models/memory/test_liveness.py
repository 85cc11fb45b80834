"""What the exact formulation leaves out: never what some schedule could do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.memory import monet
from loadmaster.models.memory.liveness import fits_alone
from tests.models.memory.instances import budgets, random_problem


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), fraction=st.floats(0.0, 1.0))
def test_encoded_results_fit_only_where_their_parents_do(seed: int, fraction: float) -> None:
    """At tight budgets too the program is written without a gap."""
    problem = random_problem(seed, operators=7, in_place=0.6, encodings=0.6)
    budget = budgets(problem, (fraction,))[0]
    fits = fits_alone(problem, budget)
    for f in problem.forward:
        if f.encodes is not None:
            assert not (fits[:, f.id] & ~fits[:, f.encodes]).any()
    program = monet.formulate(problem, budget).program
    assert np.isfinite(program.cost).all()
