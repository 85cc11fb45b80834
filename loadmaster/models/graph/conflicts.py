"""Conflicts of kernels that need too much memory: the few facts about them for which no sequence fits.

Other sets of kernels with the same facts need not be tried. Storing and reading more, or running more kernels, takes
no less: so facts are left out, one by one, as long as no sequence of what is left fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.graph.sequence import Fact, Sequences


def conflict(sequences: Sequences, facts: Sequence[Fact], most_bytes: int) -> list[Fact] | None:
    """Find a minimal set of facts for which no sequence fits; None where one fits, or the search was not complete.

    Args:
        facts: of all kernels.
    """

    def is_conflict(some: Sequence[Fact]) -> bool:
        return sequences.least(some, most_bytes) == (None, True)

    def by_size(values: frozenset[int]) -> list[int]:
        return sorted(values, key=lambda n: (sequences.sizes[n], n))

    if not is_conflict(facts):
        return None
    left = sorted(facts, key=lambda fact: (sum(sequences.sizes[n] for n in fact.stores | fact.reads), min(fact.stores)))
    for fact in [*left]:
        fewer = [other for other in left if other is not fact]
        if is_conflict(fewer):
            left = fewer
    for at in range(len(left)):
        for n in by_size(left[at].reads | left[at].stores):
            weaker = Fact(left[at].stores - {n}, left[at].reads - {n})
            if weaker.stores and is_conflict([*left[:at], weaker, *left[at + 1 :]]):
                left[at] = weaker
    return left
