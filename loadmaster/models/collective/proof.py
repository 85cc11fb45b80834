"""Proofs for a problem at one size: no algorithm that it allows is faster.

An algorithm of a plan has a form and a number of chunks. A bound of one form does not bound the other: a sum on the way
must become whole on some rank and be spread from there, where inputs that are gathered need not. So each form has its
bound, and the least of them holds for all. Where the problem names the numbers of chunks, a form's bound is the least
over those; where it leaves them open, it is that of divisible chunks, which holds for every number of them. Of
bandwidth alone a bound holds for every number anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loadmaster.models.collective.bounds import NEVER, Bound, lower_bound
from loadmaster.models.collective.collectives import forms_of, named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.logical import instance_of
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.throughput import throughput_bound_ns

# What bounds an algorithm while nothing is proved of its size.
NOTHING_YET = "nothing yet"
# The argument of a bound that a solver found (:mod:`loadmaster.models.collective.routing_bound`).
ROUTING = "routing relaxation"


@dataclass(frozen=True)
class FormProof:
    """The proof for all algorithms of one form.

    Attributes:
        instance: its chunks, in the least number that may be asked for.
        divisible: the bound holds for these chunks cut into any number of parts.
        bound: of all numbers of chunks.
        throughput_ns: by bandwidth alone.
    """

    form: Form
    instance: Instance
    divisible: bool
    bound: Bound
    throughput_ns: int


@dataclass(frozen=True)
class Proof:
    """The proof for all algorithms of a problem at one size."""

    forms: tuple[FormProof, ...]

    @property
    def weakest(self) -> FormProof:
        """The form whose bound is the least: that of the whole."""
        return min(self.forms, key=lambda form: form.bound.ns)

    @property
    def bound(self) -> Bound:
        return self.weakest.bound

    def of(self, form: Form) -> FormProof:
        """The proof for one form."""
        return next(found for found in self.forms if found.form == form)

    def with_bound(self, form: Form, bound: Bound) -> Proof:
        """Replace the bound of one form by a better one."""
        return Proof(tuple(replace(found, bound=bound) if found.form == form else found for found in self.forms))

    @property
    def throughput_ns(self) -> int:
        return min(form.throughput_ns for form in self.forms)


def prove(problem: CollectiveProblem, size_bytes: int, over: Callable[[], bool] = lambda: False) -> Proof:
    """The proof of a problem at a size, by combinatorial bounds.

    Of a later form it is enough that its bound is not below that of the first.

    Args:
        over: whether the time for it is up; what is proved by then holds.

    Raises:
        InputError: the size does not divide into the chunks asked for.
    """
    forms: list[FormProof] = []
    for form in forms_of(problem):
        enough_ns = min((found.bound.ns for found in forms), default=NEVER)
        forms.append(_of_form(problem, size_bytes, form, enough_ns, over))
    return Proof(tuple(forms))


def _of_form(
    problem: CollectiveProblem, size_bytes: int, form: Form, enough_ns: int, over: Callable[[], bool]
) -> FormProof:
    counts = named_chunk_counts(problem)
    instances = [instance_of(problem, size_bytes, count, form) for count in counts or (1,)]
    throughput_ns = throughput_bound_ns(instances[0], over)
    bound = Bound(throughput_ns, "bandwidth")
    if bound.ns < enough_ns:
        found = [lower_bound(instance, divisible=not counts, enough_ns=enough_ns, over=over) for instance in instances]
        least = min(found, key=lambda of_count: of_count.ns)
        bound = least if least.ns >= bound.ns else bound
    if len(forms_of(problem)) > 1:
        bound = Bound(bound.ns, f"{bound.by}, form {form}")
    return FormProof(form, instances[0], not counts, bound, throughput_ns)
