"""Random operators that draw the same wherever they run: what they give depends on operator, shape and arguments alone.

Plain PyTorch, a traced step before and after Inductor's decompositions, and our own operators with seeds draw the same
dropout mask in different ways. Here uniform numbers come from the generator of
:mod:`~loadmaster.executor.memory.implementations.dropout` under one seed, and an element is kept where its number is
above p. What has no form of its own here runs under that seed of the device's own generator.

The masks that compiled code draws are known to nobody else. So of a step that draws, what is held against plain
PyTorch's are the very graphs that are compiled (:class:`ByOperator`): traced, rewritten and cut as ever. An operator
that draws in the backward pass draws others than in the forward pass, so that no mask can be drawn again unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.memory.fit.trials import AnyStep
from loadmaster.executor.memory.implementations.attention import draw_seed
from loadmaster.executor.memory.implementations.dropout import SEED_LIMIT, mixed
from loadmaster.executor.memory.implementations.kernels import chunks
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.memory.run.backends import eager
from loadmaster.executor.memory.run.compiled_plans import CompiledPlans
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.executor.steps.step_graph import draws, draws_with, tensors
from loadmaster.executor.steps.tracing import Compiler, Half, compiled_plainly
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.inductor import extra_random_decomps, inductor_prims
from loadmaster.executor.torch_private.operators import (
    HigherOrderOperator,
    TorchDispatchMode,
    overload_name_of,
    overload_of,
    rng_prims,
    schema_of,
)
from loadmaster.executor.torch_private.tracing import boxed

SEED = 20231
_OTHER_SEED = SEED + 1
_DRAWN_AGAIN = (rng_prims.run_with_rng_state, rng_prims.graphsafe_run_with_rng_state)
_BITS = 9  # of a 32-bit word that a float32 between 0 and 1 has no room for
_STEPS = 1 << 32 - _BITS

aten = torch.ops.aten
Own = Callable[..., Any]


def uniform(size: Sequence[int], seed: int, device: torch.device) -> Tensor:
    """Numbers between 0 and 1, neither included, in row-major order: float32."""
    result = torch.empty(tuple(size), device=device)
    flat = result.view(-1)
    seeds = torch.tensor(seed, device=device)
    for part in chunks(flat.numel()):
        numbers = torch.arange(part.start + 1, part.stop + 1, device=device)
        flat[part] = ((mixed(numbers, seeds) >> _BITS) + 0.5) / _STEPS
    return result


class SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode in which random operators draw the same wherever they run, under the same seed. ``drawn`` names the
    operators that drew, ``seeded`` those of them that ran under a seed of the device's generator: another operator's
    draws are others. ``coarsest`` is the least precise type of what was computed."""

    supports_higher_order_operators = True

    def __init__(self, seed: int = SEED) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed = seed
        self.drawn: set[str] = set()
        self.seeded: set[str] = set()
        self.coarsest: torch.dtype | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, or draw in its place."""
        kwargs = dict(kwargs or {})
        if func in _WITH_STATE:  # of what the user's checkpoints compute again
            with self:
                return _WITH_STATE[func](*args, **kwargs)
        own = _OWN.get(getattr(func, "overloadpacket", None))
        if draws_with(func, args, kwargs):
            self.drawn.add(_name(func, args))
            result = self._drawn(func, own, args, kwargs)
        elif own is not None:  # from a seed
            result = own(self, func, *args, **kwargs)
        else:
            result = func(*args, **kwargs)
        for tensor in tensors(result):
            self._note(tensor.dtype)
        return result

    def uniform(self, size: Sequence[int], device: Any, seed: int | None = None) -> Tensor:
        """Uniformly distributed numbers between 0 and 1."""
        return uniform(size, self.seed if seed is None else seed, torch.device(device or "cpu"))

    def normal(self, size: Sequence[int], device: Any, seed: int | None = None) -> Tensor:
        """Normally distributed numbers of mean 0 and variance 1."""
        numbers: Tensor = torch.special.ndtri(self.uniform(size, device, seed))
        return numbers

    def _drawn(self, func: Any, own: Own | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        kwargs.pop("generator", None)
        if own is not None:
            return own(self, func, *args, **kwargs)
        inductors = extra_random_decomps.get(func)
        if inductors is not None:
            with self:
                result = inductors(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self.seeded.add(_name(func, args))
        devices = {t.device for t in tensors([*args, *kwargs.values()])} | {torch.device(kwargs.get("device") or "cpu")}
        with torch.random.fork_rng(devices=[d for d in devices if d.type == "cuda"]):
            torch.manual_seed(self.seed)
            return func(*args, **kwargs)

    def _note(self, dtype: torch.dtype) -> None:
        dtype = dtype.to_real()
        # Types of a byte are storage, and their values are scaled.
        if not dtype.is_floating_point or dtype.itemsize == 1:
            return
        if self.coarsest is None or torch.finfo(dtype).eps > torch.finfo(self.coarsest).eps:
            self.coarsest = dtype


class ByOperator:
    """A step that computes what another one does, operator by operator instead of compiled. ``call(*args, **kwargs)``
    is the loss; settings that its first call needs hold for its backward pass, too. ``seeded`` names the operators that
    drew under a seed of the device's generator so far."""

    def __init__(self, step: AnyStep) -> None:
        self.seeded: set[str] = set()
        model, loss = step.step.model, step.step.loss
        self.call: Callable[..., Any]
        if isinstance(step, KnobStep):
            twin = KnobStep(model, loss, knob=step.knob)
            twin.run_by(compiled_plainly(inner=self._inner))
            self.call = twin
        else:
            plans = _PlansByOperator(step.planned, self._run)
            self.call = PlannedStep(plans, model, loss, "refuse", enforce=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with functorch_config.patch(enable_autograd_cache=False):  # it would have compiled halves
            return self.call(*args, **kwargs)

    def _inner(self, module: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        return self._run(module, inputs, "backward" if settings.get("is_backward") else "forward")

    def _run(self, module: fx.GraphModule, inputs: Sequence[Any], half: Half) -> Callable[..., Any]:
        # What the user's checkpoints compute again draws with the generator put back.
        puts_back = any(node.target in _DRAWN_AGAIN for node in module.graph.nodes)
        seed = SEED if half == "forward" or puts_back else _OTHER_SEED
        run = eager(module, inputs, half)

        def drawing(arguments: list[Any]) -> Any:
            with SameDraws(seed) as draws:
                results = run(arguments)
            self.seeded |= draws.seeded
            return results

        return boxed(drawing)


class _PlansByOperator(CompiledPlans):
    """Plans of a step, run operator by operator, and known for smaller batches, too."""

    def __init__(self, planned: CompiledPlans, run: Callable[[fx.GraphModule, Sequence[Any], Half], Any]) -> None:
        super().__init__(planned.plans, "eager", planned.implementations)
        self._run = list(planned._run)
        self._by_operator = run

    def _compilers(self) -> tuple[Compiler, Compiler]:
        return (lambda m, i: self._by_operator(m, i, "forward")), (lambda m, i: self._by_operator(m, i, "backward"))


def _name(func: Any, args: Sequence[Any]) -> str:
    """Name of an operator, the same for its in-place and its functional form."""
    operator = next(filter(draws, args)) if isinstance(func, HigherOrderOperator) else func
    name: str = schema_of(operator).name.removeprefix("aten::")
    return name.removesuffix("_functional").removesuffix("_")


def _dropout(mode: SameDraws, _func: Any, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = mode.uniform(x.shape, x.device) > p
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


def _bernoulli(mode: SameDraws, func: Any, x: Tensor, p: Any = 0.5) -> Tensor:
    """Draw zeros and ones. On a CPU dropout draws with the chance of what is kept."""
    numbers = mode.uniform(x.shape, x.device)
    if overload_name_of(func) == "default":
        kept = numbers < x
    elif isinstance(p, (int, float)) and x.device.type == "cpu":
        kept = numbers > 1 - p
    else:
        kept = numbers < p
    return x.copy_(kept) if schema_of(func).is_mutable else kept.to(x.dtype)


def _rand(mode: SameDraws, func: Any, size: Sequence[int], *_names: Any, **kwargs: Any) -> Tensor:
    draw = mode.normal if "randn" in schema_of(func).name else mode.uniform
    return draw(size, kwargs.get("device")).to(kwargs.get("dtype") or torch.get_default_dtype())


def _rand_like(mode: SameDraws, func: Any, x: Tensor, **kwargs: Any) -> Tensor:
    draw = mode.normal if "randn" in schema_of(func).name else mode.uniform
    return torch.empty_like(x, **kwargs).copy_(draw(x.shape, kwargs.get("device") or x.device))


def _uniform(mode: SameDraws, func: Any, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    numbers = (mode.uniform(x.shape, x.device) * (high - low) + low).to(x.dtype)
    return x.copy_(numbers) if schema_of(func).is_mutable else numbers


def _normal_like(mode: SameDraws, func: Any, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    numbers = (mode.normal(x.shape, x.device) * std + mean).to(x.dtype)
    return x.copy_(numbers) if schema_of(func).is_mutable else numbers


def _rrelu(
    mode: SameDraws,
    func: Any,
    x: Tensor,
    noise: Tensor,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,
) -> Any:
    if not training:
        return func(x, noise, low, high, training)
    slopes = _uniform(mode, aten.uniform.default, x, low, high)
    made, slopes = torch.where(x <= 0, x * slopes, x), torch.where(x <= 0, slopes, 1)
    if not schema_of(func).is_mutable:
        return made, slopes
    noise.copy_(slopes)
    return x.copy_(made) if schema_of(func).name.endswith("_") else made


def _randint(mode: SameDraws, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    *bounds, size = args
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    if high == SEED_LIMIT:  # the seed of an operator that draws from it
        numbers = torch.full(tuple(size), mode.seed, device=kwargs.get("device"))
    else:
        numbers = _between(mode.uniform(size, kwargs.get("device")), low, high)
    return numbers.to(kwargs.get("dtype") or torch.int64)


def _randint_like(mode: SameDraws, func: Any, x: Tensor, *bounds: int, **kwargs: Any) -> Tensor:
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return torch.empty_like(x, **kwargs).copy_(_between(mode.uniform(x.shape, x.device), low, high))


def _between(numbers: Tensor, low: int, high: int) -> Tensor:
    return (numbers.double() * (high - low)).long() + low


def _random_of(mode: SameDraws, _func: Any, size: Sequence[int], seed: Tensor, kind: str, **_: Any) -> Tensor:
    draw = mode.normal if kind == "randn" else mode.uniform
    return draw(size, seed.device, int(seed))


_WITH_STATE: dict[Any, Own] = {
    rng_prims.run_and_save_rng_state: lambda operator, *args, **kwargs: (
        torch.get_rng_state(),
        operator(*args, **kwargs),
    ),
    rng_prims.run_with_rng_state: lambda _state, operator, *args, **kwargs: operator(*args, **kwargs),
    rng_prims.graphsafe_run_with_rng_state: lambda operator, *args, rng_state=None, **kwargs: operator(*args, **kwargs),
}


def _inductors() -> dict[Any, Own]:
    forms: dict[Any, Own] = {
        inductor_prims.seeds: lambda mode, _, count, device: torch.full((count,), mode.seed, device=device),
        inductor_prims.seed: lambda mode, _, device: torch.tensor(mode.seed, device=device),
        inductor_prims.random: _random_of,
        inductor_prims.randint: lambda mode, _, low, high, size, seed: _between(
            mode.uniform(size, seed.device, int(seed)), low, high
        ),
    }
    return {getattr(prim, "overloadpacket", prim): form for prim, form in forms.items()}


_OWN: dict[Any, Own] = {
    aten.native_dropout: _dropout,
    aten.bernoulli: _bernoulli,
    aten.bernoulli_: _bernoulli,
    aten.rand: _rand,
    aten.randn: _rand,
    aten.rand_like: _rand_like,
    aten.randn_like: _rand_like,
    aten.uniform: _uniform,
    aten.uniform_: _uniform,
    aten.normal_: _normal_like,
    aten.normal_functional: _normal_like,
    aten.rrelu_with_noise: _rrelu,
    aten.rrelu_with_noise_: _rrelu,
    aten.rrelu_with_noise_functional: _rrelu,
    aten.randint: _randint,
    aten.randint_like: _randint_like,
    overload_of(draw_seed).overloadpacket: lambda mode, _, _reader: torch.tensor(mode.seed),
    **_inductors(),
}
