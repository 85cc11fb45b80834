"""Strategies of the operators of a traced graph: those of their formulas that a trial on small tensors confirms.

A formula says what an operator computes; a kernel may compute something else (attention split over its head dimension,
a mean that divides by the share's extent, a norm over what was cut). So every strategy is run on two and on three
virtual workers: inputs are cut as it says, the operator runs on each worker's part, and the parts of the result must
make up the result of the whole ([Wang20] section 3.3.1, "partition-n-reduce").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.limits import NotUnderstoodError
from loadmaster.executor.costs.materialize import filled, fills_of
from loadmaster.executor.partition.on_shares import call_on_share, results_of, tensors_of, with_told
from loadmaster.executor.steps.step_graph import is_random
from loadmaster.executor.torch_private.fake_tensors import unset_fake_temporarily
from loadmaster.executor.torch_private.operators import OpOverload, pytree, schema_of
from loadmaster.models.partition.problem import Need, Strategy
from loadmaster.models.partition.tdl.aten import formula_of
from loadmaster.models.partition.tdl.calls import TdlCall
from loadmaster.models.partition.tdl.formula import Formula
from loadmaster.models.partition.tdl.rules import pointwise

# Extents of what is split in a trial: each is divided by 2 and by 3.
_EXTENTS = (6, 12)
# Operators that draw a number for every element.
DRAWN_BY_ELEMENT = frozenset({"native_dropout", "bernoulli", "rand_like", "randn_like"})
# Half precision loses digits that the comparison with the sum of parts needs.
_TRIED_IN = torch.float64
WORKERS = (2, 3)
_RELATIVE, _ABSOLUTE = 1e-9, 1e-10
_DIGITS_LOST = 16


@dataclass(frozen=True)
class Operand:
    """Tensor that an operator is given: the name of the argument, and the node that makes it."""

    argument: str
    node: fx.Node


@dataclass(frozen=True)
class Admitted:
    """Formula of an operator (None: there is no rule, or none for such a call), the strategies that hold for it, and
    the reason why none does; empty where one does, or nothing could be split."""

    formula: Formula | None
    strategies: tuple[Strategy, ...]
    reason: str = ""


def operands(node: fx.Node) -> list[Operand]:
    """Tensors that a node is given, in the order of its arguments."""
    names = [argument.name for argument in schema(node).arguments]
    given = [*zip(names, node.args, strict=False), *node.kwargs.items()]
    leaves = [(name, leaf) for name, value in given for leaf in pytree.tree_leaves(value)]
    return [Operand(name, leaf) for name, leaf in leaves if isinstance(leaf, fx.Node) and is_tensor(leaf)]


def schema(node: fx.Node) -> Any:
    """Return the schema of the operator that a node calls."""
    assert isinstance(node.target, OpOverload)
    return schema_of(node.target)


def is_tensor(node: fx.Node) -> bool:
    """Return whether a node's result is one tensor."""
    return isinstance(node.meta.get("val"), Tensor)


class Trials:
    """Trials that admit strategies, once for each sort of call, on the device where the call would run."""

    def __init__(self) -> None:
        self._known: dict[object, Admitted] = {}

    def of(self, node: fx.Node) -> Admitted:
        """Return the formula and the strategies of a node's operator, tried if they are not known yet."""
        given = operands(node)
        call = _call(node, given)
        if is_random(node):
            return _random(call)
        formula = formula_of(call)
        shapes = [(*_shape(operand.node),) for operand in given] + [
            tuple(t.shape) for t in results_of(node.meta.get("val"))
        ]
        if formula is None:
            # An assertion of one Boolean has nothing to split; a tensor made from nothing is made on every worker.
            is_whole = not given or not any(shapes)
            return Admitted(None, (), "" if is_whole else "has no formula")
        try:
            extents = formula.extents(shapes)
        except InputError:
            return Admitted(None, (), "is called otherwise than its formula is for")
        if not any(letter.islower() for letter in extents):
            return Admitted(formula, ())
        small = _small(formula, extents)
        key = (node.target, str(formula), tuple(small.items()), _others(node), tuple(map(_dtype, given)))
        if key not in self._known:
            self._known[key] = self._tried(_Trial(node, given, formula, small, extents))
        return self._known[key]

    def _tried(self, trial: _Trial) -> Admitted:
        """Try all strategies of a formula, in float64; where the kernel does not take that, as the model calls it."""
        formula, reason = trial.formula, ""
        with unset_fake_temporarily(), torch.no_grad():
            for exactly in (False,) if formula.own_formats else (True, False):
                try:
                    found = tuple(s for s in formula.strategies if trial.bears_out(s, exactly=exactly))
                except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
                    reason = reason or f"cannot be tried: {str(error).splitlines()[0]}"
                    continue
                refused = [s.name for s in formula.strategies if s not in found]
                return Admitted(formula, found, "" if found else f"its kernel refutes {', '.join(refused) or 'all'}")
        return Admitted(formula, (), reason)


class _Trial:
    """Trial of one call on small tensors: ``small`` extents in float64, ``extents`` of the call itself."""

    def __init__(
        self,
        node: fx.Node,
        given: Sequence[Operand],
        formula: Formula,
        small: Mapping[str, int],
        extents: Mapping[str, int],
    ) -> None:
        self.node, self.given, self.formula = node, given, formula
        # Kernels of half precision ask for more than a few elements of what they take whole.
        own = {letter: small[letter] if letter.islower() else extent for letter, extent in extents.items()}
        self.extents = {True: small, False: small if formula.own_formats else own}
        self.listed = {a.name: value for a, value in zip(schema(node).arguments, node.args, strict=False)}

    def bears_out(self, strategy: Strategy, *, exactly: bool) -> bool:
        """Return whether a strategy holds, in float64 if ``exactly``, else in the formats of the call."""
        extents, target = self.extents[exactly], self.node.target
        args, kwargs = self._arguments(exactly)

        def told(workers: int) -> dict[str, object]:
            share = {**extents, strategy.name: extents[strategy.name] // workers}
            return self.formula.told_values(share, self.listed)

        compared = self.formula.compared
        return holds(target, args, kwargs, strategy, told=told, compared=compared)  # type: ignore[arg-type]

    def _arguments(self, exactly: bool) -> tuple[list[Any], dict[str, Any]]:
        extents = self.extents[exactly]
        shapes = [[extents[c] for c in letters] for letters in self.formula.inputs]
        dtypes = [_dtype(operand) for operand in self.given]
        generator = torch.Generator().manual_seed(0)
        without_values = [torch.empty(s, dtype=d, device="meta") for s, d in zip(shapes, dtypes, strict=True)]
        most = _most(self.node.target, *self._with(without_values, exactly))
        return self._with(
            [
                _filled(shape, operand.node.meta["val"], generator, largest, exactly=exactly)
                for shape, operand, largest in zip(shapes, self.given, most, strict=True)
            ],
            exactly,
        )

    def _with(self, tensors: Sequence[Tensor], exactly: bool) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of the call, with these tensors in place of its own."""
        extents, target, given = self.extents[exactly], self.node.target, iter(tensors)

        def placed(leaf: Any) -> Any:
            if isinstance(leaf, fx.Node):
                return next(given) if is_tensor(leaf) else value(leaf)
            if isinstance(leaf, torch.dtype) and leaf.is_floating_point and exactly:
                return _TRIED_IN
            return leaf

        args, kwargs = pytree.tree_map(placed, (self.node.args, dict(self.node.kwargs)))
        return with_told(target, args, self.formula.told_values(extents, self.listed)), kwargs  # type: ignore[arg-type]


def _most(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """Largest whole number that a trial gives each tensor: 1, or 0 where 0 is the only valid position."""
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    try:
        fills = fills_of(target, args, kwargs)
    except NotUnderstoodError:
        return [1] * len(given)
    found = []
    for tensor, fill in zip(given, fills, strict=True):
        counts = bool(tensor.numel()) and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
        found.append(min(1, int(filled(tensor, fill, torch.device("cpu")).max())) if counts else 1)
    return found


def _filled(shape: Sequence[int], like: Tensor, generator: torch.Generator, most: int, *, exactly: bool) -> Tensor:
    """Fill a tensor with numbers between 0 and 1, where every function is defined; whole ones from 0 to ``most``."""
    device = "cpu" if like.is_meta else like.device
    if like.dtype.is_floating_point or like.dtype.is_complex:
        tried = _TRIED_IN if like.dtype.is_floating_point and exactly else like.dtype
        return (0.1 + 0.8 * torch.rand(shape, generator=generator, dtype=_TRIED_IN)).to(device, tried)
    return torch.randint(0, most + 1, shape, generator=generator).to(device, like.dtype)


def _random(call: TdlCall) -> Admitted:
    """Admit a random operator without a trial: its shares are random numbers too, but not those of the whole."""
    formula = pointwise(call) if call.name in DRAWN_BY_ELEMENT else None
    if formula is None:
        return Admitted(None, (), "draws random numbers")
    return Admitted(formula, formula.strategies)


def value(node: fx.Node) -> Any:
    """Return the value of a node that is not a tensor: a number that tracing found."""
    return node.meta["val"]


def _call(node: fx.Node, given: Sequence[Operand]) -> TdlCall:
    of = schema(node)
    defaults = {argument.name: argument.default_value for argument in of.arguments}
    names = [argument.name for argument in of.arguments]
    arguments = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    plain = {
        name: pytree.tree_map(lambda leaf: True if isinstance(leaf, fx.Node) else leaf, argument)
        for name, argument in arguments.items()
    }
    return TdlCall(
        name=of.name.partition("::")[2],
        inputs=tuple((operand.argument, _shape(operand.node)) for operand in given),
        results=tuple(tuple(tensor.shape) for tensor in results_of(node.meta.get("val"))),
        arguments=plain,
        pointwise=torch.Tag.pointwise in node.target.tags,  # type: ignore[union-attr]
    )


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _dtype(operand: Operand) -> torch.dtype:
    dtype: torch.dtype = operand.node.meta["val"].dtype
    return dtype


def _others(node: fx.Node) -> str:
    """Text of a node's arguments without its tensors, for the key of a trial."""
    return str(pytree.tree_map(lambda leaf: "tensor" if isinstance(leaf, fx.Node) else leaf, (node.args, node.kwargs)))


def _small(formula: Formula, extents: Mapping[str, int]) -> dict[str, int]:
    """Extents of a trial: small, and divisible by its numbers of workers along every letter that can be split."""
    split = [letter for letter in extents if letter.islower()]
    found = {letter: formula.small.get(letter, extent) for letter, extent in extents.items()}
    return found | {letter: _EXTENTS[n % len(_EXTENTS)] for n, letter in enumerate(split)}


def holds(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    strategy: Strategy,
    told: Callable[[int], Mapping[str, Any]] = lambda _: {},
    compared: int | None = None,
) -> bool:
    """Return whether a strategy holds for a call: parts of the result make up the result of the whole.

    It does not where the call fails on a share, or shares need a halo, which no executor exchanges.

    Args:
        args, kwargs: of a call on small tensors, in float64 where they are not whole numbers. What is split has an
            extent that 2 and 3 divide.
        strategy: for its tensors, in the order of the arguments.
        told: number of workers -> arguments, by name, that say how large a share is.
        compared: number of results to compare, the first ones; None: all.
    """
    whole = results_of(target(*args, **kwargs))
    inputs = tensors_of(args, kwargs)
    if (len(inputs), len(whole)) != (len(strategy.inputs), len(strategy.outputs)):
        return False
    if any(need.before or need.after for need in strategy.inputs):
        return False
    return all(_holds_on(target, args, kwargs, strategy, whole[:compared], inputs, n, told(n)) for n in WORKERS)


def _holds_on(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    strategy: Strategy,
    whole: Sequence[Tensor],
    inputs: Sequence[Tensor],
    workers: int,
    told: Mapping[str, Any],
) -> bool:
    cut = [_cut(tensor, need, workers) for tensor, need in zip(inputs, strategy.inputs, strict=True)]
    if None in cut:
        return False
    parts: list[list[Tensor]] = []
    for worker in range(workers):
        shares = [of[worker] for of in cut if of is not None]
        try:
            parts.append(call_on_share(target, args, kwargs, shares, told))
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return False
    return all(
        _makes_up(result, part, [of[n] for of in parts])
        for n, (result, part) in enumerate(zip(whole, strategy.outputs, strict=False))
    )


def _cut(tensor: Tensor, need: Need, workers: int) -> list[Tensor] | None:
    """Cut a tensor into what each worker gets; None where shares would not be equal, or for a sum of whole numbers."""
    if need.part == "R":
        return [tensor] * workers
    if need.part == "P":
        if not tensor.is_floating_point():
            return None
        generator = torch.Generator().manual_seed(workers)
        terms = [torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for _ in range(workers - 1)]
        return [*terms, tensor - sum(terms)]
    dim = int(need.part[1:])
    if dim >= tensor.dim() or tensor.shape[dim] % workers:
        return None
    return [share.contiguous() for share in tensor.chunk(workers, dim)]


def _makes_up(result: Tensor, part: str, parts: Sequence[Tensor]) -> bool:
    """Return whether the workers' parts of a result make up the whole result."""
    if part == "R":
        return all(_equal(result, one) for one in parts)
    if part == "P":
        return all(one.shape == result.shape for one in parts) and _equal(result, sum(parts[1:], parts[0]))
    dim = int(part[1:])
    same = all(one.dim() == result.dim() > dim and one.shape == parts[0].shape for one in parts)
    return same and _equal(result, torch.cat(list(parts), dim))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    # In a format with fewer digits, all but a few of them must agree.
    relative = max(_RELATIVE, _DIGITS_LOST * torch.finfo(one.dtype).eps)
    absolute = (
        relative * float(other.nan_to_num().abs().max()) if one.dtype != torch.float64 and other.numel() else _ABSOLUTE
    )
    return bool(torch.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True))
