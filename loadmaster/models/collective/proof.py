"""What is proved of a problem at one size: no algorithm that it allows is faster.

An algorithm of a plan has a form and a number of chunks. A bound of one form is none of the other: a sum on the way
must become whole on some rank and be spread from there, where inputs that are gathered need not. So each form has its
bound, and the least of them holds for all. Where the problem names the numbers of chunks, a form's bound is the least
over those; where it leaves them open, it is that of divisible chunks, which holds for every number of them. Of
bandwidth alone a bound holds for every number anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadmaster.models.collective.bounds import Bound, lower_bound
from loadmaster.models.collective.collectives import forms_of, named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.logical import instance_of
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.throughput import throughput_bound_ns


@dataclass(frozen=True)
class FormProof:
    """What is proved of all algorithms of one form.

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
    """What is proved of all algorithms of a problem at one size."""

    forms: tuple[FormProof, ...]

    @property
    def weakest(self) -> FormProof:
        """The form whose bound is the least: that of the whole."""
        return min(self.forms, key=lambda form: form.bound.ns)

    @property
    def bound(self) -> Bound:
        return self.weakest.bound

    def of(self, form: Form) -> FormProof:
        """What is proved of one form."""
        return next(found for found in self.forms if found.form == form)

    def with_bound(self, form: Form, bound: Bound) -> Proof:
        """The same with a better bound of one form."""
        return Proof(tuple(replace(found, bound=bound) if found.form == form else found for found in self.forms))

    @property
    def throughput_ns(self) -> int:
        return min(form.throughput_ns for form in self.forms)


def prove(problem: CollectiveProblem, size_bytes: int) -> Proof:
    """The proof of a problem at a size, by combinatorial bounds.

    Raises:
        InputError: the size does not divide into the chunks asked for.
    """
    return Proof(tuple(_of_form(problem, size_bytes, form) for form in forms_of(problem)))


def _of_form(problem: CollectiveProblem, size_bytes: int, form: Form) -> FormProof:
    counts = named_chunk_counts(problem)
    instances = [instance_of(problem, size_bytes, count, form) for count in counts or (1,)]
    bound = min((lower_bound(instance, divisible=not counts) for instance in instances), key=lambda found: found.ns)
    throughput_ns = throughput_bound_ns(instances[0])
    if throughput_ns > bound.ns:
        bound = Bound(throughput_ns, "bandwidth")
    if len(forms_of(problem)) > 1:
        bound = Bound(bound.ns, f"{bound.by}, form {form}")
    return FormProof(form, instances[0], not counts, bound, throughput_ns)
