"""JSON of the kind ``partition``: problem and plan documents to typed data and back."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments, expect_with_status
from loadmaster.models.partition.placements import code
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import Axis, Need, PartitionProblem


def check_problem(problem: PartitionProblem) -> None:
    """Refuse what the fields cannot say one by one: unknown tensors or signatures, strategies that do not fit their
    operators, a tensor that two operators make or that is read before it is made, ties of unequal members, axes whose
    weights, speeds or memory are for other workers. The InputError names the field."""
    if problem.overlap is not None and not 0 <= problem.overlap < 1:
        raise InputError("overlap", problem.overlap, "is no share", "Give 0 or more, and less than 1.")
    _check_strategies(problem)
    made: dict[int, int] = {}
    producers = {t for operator in problem.operators for t in operator.outputs}
    for n, operator in enumerate(problem.operators):
        field = f"operators[{n}]"
        _check_operator(problem, n)
        if operator.launch_us > operator.time_us:
            remedy = f"Give at most time_us, {operator.time_us:g}."
            raise InputError(f"{field}.launch_us", operator.launch_us, "is more than the operator takes", remedy)
        for tensor in operator.inputs:
            if tensor in producers and tensor not in made:
                name = problem.tensors[tensor].name
                raise InputError(f"{field}.inputs", name, "is made by a later operator", "List producers first.")
        for tensor in operator.outputs:
            if tensor in made:
                name = problem.tensors[tensor].name
                raise InputError(f"{field}.outputs", name, f"is made by operators[{made[tensor]}] too", "Name one.")
            made[tensor] = n
    _check_ties(problem)
    _check_axes(problem.axes)


def _check_axes(axes: Sequence[Axis]) -> None:
    for n, axis in enumerate(axes):
        for field in ("weights", "speeds", "memory_factors"):
            found = getattr(axis, field)
            if found and len(found) != axis.size:
                remedy = f"Give {axis.size} numbers, or none where all are the same."
                raise InputError(f"axes[{n}].{field}", found, f"is for {len(found)} workers of {axis.size}", remedy)
        if axis.memory_factors and max(axis.memory_factors) != 1:
            remedy = "Give 1 for the largest, and of the others their part of it."
            raise InputError(f"axes[{n}].memory_factors", axis.memory_factors, "has no worker with all of it", remedy)
    names = [axis.name for axis in axes]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise InputError(f"axes[{n}].name", name, "is another axis's name too", "Give each axis its own.")


def _check_strategies(problem: PartitionProblem) -> None:
    for n, signature in enumerate(problem.signatures):
        first = signature.strategies[0]
        for s, strategy in enumerate(signature.strategies):
            found = (len(strategy.inputs), len(strategy.outputs))
            if found != (len(first.inputs), len(first.outputs)):
                field = f"signatures[{n}].strategies[{s}]"
                remedy = f"It is for {len(first.inputs)} inputs and {len(first.outputs)} outputs, as the first one."
                raise InputError(field, strategy.name, "has another number of inputs or outputs", remedy)


def _check_copy(problem: PartitionProblem, n: int) -> None:
    """Refuse a copy that is not of one tensor of the same shape, with the same parts."""
    operator = problem.operators[n]
    signature = problem.signatures[operator.signature]
    tensors = [problem.tensors[t] for t in (*operator.inputs, *operator.outputs)]
    alike = len({(t.shape, t.element_bytes) for t in tensors}) == 1
    if (len(operator.inputs), len(operator.outputs)) != (1, 1) or not alike:
        remedy = "Give it one input and one output of equal shape and element_bytes."
        raise InputError(f"operators[{n}]", operator.op, "is no copy of one tensor", remedy)
    for s, strategy in enumerate(signature.strategies):
        if strategy.inputs != (Need(strategy.outputs[0]),):
            field = f"signatures[{operator.signature}].strategies[{s}]"
            raise InputError(field, strategy.name, "does not copy", "Give input and output one part, without halos.")


def _check_operator(problem: PartitionProblem, n: int) -> None:
    operator = problem.operators[n]
    field = f"operators[{n}]"
    if operator.signature >= len(problem.signatures):
        remedy = f"Signatures are numbered 0 to {len(problem.signatures) - 1}."
        raise InputError(f"{field}.signature", operator.signature, "is no signature", remedy)
    for side in ("inputs", "outputs"):
        unknown = [t for t in getattr(operator, side) if t >= len(problem.tensors)]
        if unknown:
            remedy = f"Tensors are numbered 0 to {len(problem.tensors) - 1}."
            raise InputError(f"{field}.{side}", unknown[0], "is no tensor", remedy)
    if not operator.inputs and not operator.outputs:
        raise InputError(field, operator.op, "has neither inputs nor outputs", "Leave it out.")
    signature = problem.signatures[operator.signature]
    first = signature.strategies[0]
    for side in ("inputs", "outputs"):
        given, wanted = len(getattr(operator, side)), len(getattr(first, side))
        if given != wanted:
            remedy = f"Strategies of {signature.name} are for {wanted}."
            raise InputError(f"{field}.{side}", given, "is another number than its strategies have", remedy)
    if signature.copy:
        _check_copy(problem, n)
    for strategy in signature.strategies:
        parts = (*(need.part for need in strategy.inputs), *strategy.outputs)
        for tensor, part in zip((*operator.inputs, *operator.outputs), parts, strict=True):
            if code(part) >= len(problem.tensors[tensor].shape):
                of = problem.tensors[tensor]
                remedy = f"{of.name} has {len(of.shape)} dimensions."
                raise InputError(f"{field}.signature", strategy.name, f"splits {of.name} as {part}", remedy)


def _check_ties(problem: PartitionProblem) -> None:
    ranks: dict[str, int] = {}
    for n, tensor in enumerate(problem.tensors):
        if tensor.tie is not None and ranks.setdefault(tensor.tie, len(tensor.shape)) != len(tensor.shape):
            remedy = f"Other tensors of this tie have {ranks[tensor.tie]} dimensions."
            raise InputError(f"tensors[{n}].tie", tensor.tie, f"ties a tensor of {len(tensor.shape)}", remedy)
    signatures: dict[str, int] = {}
    for n, operator in enumerate(problem.operators):
        if operator.tie is not None and signatures.setdefault(operator.tie, operator.signature) != operator.signature:
            remedy = "Operators of one tie have one signature."
            raise InputError(f"operators[{n}].tie", operator.tie, "ties operators of two signatures", remedy)


def _check_plan(plan: PartitionPlan) -> None:
    expect_with_status(plan, "objective", "splits")


DOCUMENTS = KindDocuments(PartitionProblem, PartitionPlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
