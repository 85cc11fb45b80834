"""A training step that runs a schedule: parameters, gradients and optimizer state move while the model computes.

Hooks on the blocks tell the phase: a position is reached when a block is about to run, forward or backward. What is due
there is launched: updates of what the phase before completed, moves, and waits for what the phase needs. The device
runs all of it in order, on the compute stream and a stream for each direction of copies. The host's updates run in a
thread of their own.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.torch_private.autograd import after_backward
from loadmaster.executor.torch_private.operators import pytree
from loadmaster.executor.training.actions import Actions
from loadmaster.executor.training.chunked_loss import Heads
from loadmaster.executor.training.clipping import Clipping
from loadmaster.executor.training.copies import mover_of
from loadmaster.executor.training.evaluation import Visits, as_in_training
from loadmaster.executor.training.layers import ModelLayers
from loadmaster.executor.training.loop import Loop, expect_no_scaler, expect_number
from loadmaster.executor.training.points import CHUNKED_LOSS, KEEP, BlockPoints, OwnForward, expect_known
from loadmaster.executor.training.saving import saved_whole
from loadmaster.executor.training.timetable import Do, timetable
from loadmaster.executor.training.updates import host_threads
from loadmaster.executor.training.weights import AnyWeights, InterruptedStepError, expect_casts, saved_by_place
from loadmaster.models.training.moves import Moves
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import TrainingProblem

# Models that run under a step.
_UNDER_A_STEP: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class TrainingStep(nn.Module):
    """A training step under a schedule: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``.

    Updates run inside the backward pass or after it. ``optimizer.step()`` and ``optimizer.zero_grad()`` may stay where
    they are: they find nothing to do. Updates read the optimizer's settings when their gradients are complete, so that
    schedulers work. ``model.state_dict()`` and ``optimizer.state_dict()`` give everything, wherever it is. Under
    ``torch.no_grad()`` the model runs as it is, its weights coming as they are needed.

    Args:
        model, loss: as for :func:`~loadmaster.executor.fitting.fit`.
        layers, problem, schedule: of the model, and how it runs. The optimizer's state that updates need is taken over.
        copy_dtype: format of copies whose layers cast to it under torch.autocast; None: that of the master weights.
        max_norm: to which gradients are clipped, by their global norm; None: not at all.
        max_value: to which each value of a gradient is clipped, either way; None: not at all.
        compiled: compile the blocks with torch.compile.
        disk: folder for files, where the schedule has optimizer state there.
        on_position: called with (position, whether what is due there has been launched), for measurements.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        layers: ModelLayers,
        problem: TrainingProblem,
        schedule: Schedule,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        copy_dtype: torch.dtype | None = None,
        max_norm: float | None = None,
        max_value: float | None = None,
        compiled: bool = False,
        disk: str | PathLike[str] | None = None,
        on_position: Callable[[int, bool], None] | None = None,
    ) -> None:
        super().__init__()
        expect_unplanned(model)
        expect_known(problem)
        self.step = Step(model, loss)
        self.schedule, self.problem = schedule, problem
        self._layers, self._optimizer = layers, optimizer
        self._count = 2 * len(layers.names)  # phases of one micro-batch
        self._table = timetable(problem, schedule)
        self._clipping = Clipping(max_norm, max_value)
        self._on_position = on_position
        self._pass, self._reached, self._call = 0, -1, 0
        self._in_forward = self._in_backward = self._released = False
        self._went_back = True
        self._evaluated: nn.Module | None = None  # between two steps
        self._visits = Visits()
        in_files = Moves(problem, schedule, Phases(problem)).in_files if schedule.disk_buffers else ()
        self._actions = Actions(layers, schedule, mover_of(device), self._clipping, host_threads(), in_files, disk)
        self._handles: list[Any] = []
        before = [(tensor, tensor.device) for tensor in (*model.buffers(), *model.parameters())]
        try:
            self._take_over(device, copy_dtype, compiled)
        except BaseException:
            self._give_back()
            for tensor, was_on in before:
                tensor.data = tensor.data.to(was_on)
            raise
        _UNDER_A_STEP.add(model)

    def _take_over(self, device: torch.device, copy_dtype: torch.dtype | None, compiled: bool) -> None:
        """Move everything to where the schedule has it."""
        model, optimizer, actions = self.step.model, self._optimizer, self._actions
        for buffer in model.buffers():
            buffer.data = buffer.data.to(device)
        actions.take_over(optimizer, device, copy_dtype)
        names = {p: name for name, p in model.named_parameters()}
        frozen = [p for of in self._layers.groups if of.updated_by is None for p in of.parameters]
        passes = self.problem.micro_batches
        self._loop = Loop(optimizer, names, actions.trained, frozen, passes, actions.expect_whole)
        self._handles.append(self._loop)
        self._hook(compiled)
        self._handles += saved_whole(model, optimizer, actions)  # last: groups' own optimizers have the state now

    def detach(self) -> None:
        """Take hooks off model and optimizer, and end the host's thread; weights and state stay where they are."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._actions.shut_down()
        _UNDER_A_STEP.discard(self.step.model)

    def _give_back(self) -> None:
        """Let parameters show their master weights, on the host where they are there, and take away all hooks."""
        self.detach()
        for p, value in self._actions.master_values():
            p.data = value

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of all gradients of the latest step before clipping, as ``torch.nn.utils.clip_grad_norm_`` returns it;
        None before a step, or where they are not clipped by their norm."""
        return self._clipping.norm

    @property
    def is_amid_micro_batches(self) -> bool:
        """True where gradients of a step's first backward passes wait for the others."""
        return self._pass > 0

    @property
    def losses_in_chunks(self) -> int:
        """Number of losses that ran in chunks so far."""
        return self._heads.losses

    @property
    def streamed_bytes(self) -> int:
        """Bytes of streamed weights that are on the device now."""
        return sum(weights.present_bytes for weights in self._actions.streamed)

    # Moves of one step to the next are not part of a compiled function around it.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one batch."""
        if not torch.is_grad_enabled():
            return cast(Tensor, self.step(*args, **kwargs))
        self._begin_pass()
        saved = saved_by_place(self._actions.places) if self._actions.streamed else contextlib.nullcontext()
        try:
            with saved:
                loss = self.step(*args, **kwargs)
        finally:
            self._in_forward = False
        if self._actions.step == 0 and self._actions.streamed:
            expect_number(loss)
        self._went_back = False
        loss.register_hook(partial(self._begin_backward, self._call))
        return cast(Tensor, loss)

    # --- where the step is

    def _begin_pass(self) -> None:
        if self._released:
            remedy = "Train the model as plain PyTorch, or call fit again."
            raise InputError("step", "released", "has given its model back", remedy)
        self._actions.expect_whole()
        self._loop.begin_pass()
        self._visits.go()
        self._evaluated = None
        self._actions.show()
        base, self._call = self._pass * self._count, self._call + 1
        if self._reached >= base:  # a loss that nobody went back from, or a pass that failed: it begins again
            self._reached = base - 1
            for weights in self._actions.streamed:
                weights.drop()
        self._in_forward, self._in_backward = True, False
        try:
            self._reach(base)
        except BaseException:
            self._in_forward = False
            raise

    def _begin_backward(self, call: int, gradient: Tensor) -> None:
        if call != self._call or self._went_back or self._released:
            problem = "goes backward a second time" if call == self._call else "is not of the step's latest call"
            remedy = "Call backward() once after each step(...), before the next one."
            raise InputError("loss", f"call {call} of {self._call}", problem, remedy)
        if self._actions.step == 0 and self._pass == 0:
            expect_no_scaler(float(gradient), self.problem.micro_batches)
        self._went_back = self._in_backward = True
        after_backward(self._end_pass)
        self._reach(self._pass * self._count + len(self._layers.names))

    def _end_pass(self) -> None:
        self._in_backward = False
        try:
            self._reach((self._pass + 1) * self._count - 1)
            self._pass += 1
            if self._on_position is not None:
                self._on_position(self._pass * self._count, False)
            if self._pass < self.problem.micro_batches:
                self._loop.end_pass()
            else:
                self._end_step()
        except BaseException as error:
            self._actions.break_off(error)
            raise

    def _end_step(self) -> None:
        self._run_at_end(Do.SEND_GRADIENTS)
        self._actions.know_norm()
        self._run_at_end(Do.UPDATE)
        self._loop.end_step(self._actions.end_step())
        self._pass, self._reached = 0, -1

    def _run_at_end(self, do: Do) -> None:
        for action in self._table[0]:
            if action.steps_later == 1 and action.do is do:
                self._actions.run(action, self._actions.step)

    def _reach(self, position: int) -> None:
        """Launch what is due at all positions up to this one."""
        for at in range(self._reached + 1, position + 1):
            self._reached = at
            if self._on_position is not None:
                self._on_position(at, False)
            for action in self._table[at]:
                self._actions.run(action, self._actions.step - action.steps_later)
            if self._on_position is not None:
                self._on_position(at, True)

    # --- the model's hooks

    def _hook(self, compiled: bool) -> None:
        blocks, model, handles = self._layers.blocks, self.step.model, self._handles
        both = list(zip(self._actions.weights, self._layers.groups, strict=True))
        for number, block in enumerate(blocks, start=1):
            of_layer = [w for w, of in both if of.layers == (number,)]
            needed = [w for w, of in both if number in of.layers]
            before, after = partial(self._before_block, number, of_layer, needed), partial(self._after_block, number)
            handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(block.register_forward_hook(after))
            handles.append(OwnForward(block))
            block.forward = partial(self._run_block, number, BlockPoints(block, compiled=compiled))
        self._heads = Heads(model, blocks, self._has_loss_in_chunks)
        handles.append(self._heads)
        outside = [w for w, of in both if len(of.layers) > 1 or of.layers[0] in self._layers.outer]
        handles.append(model.register_forward_pre_hook(partial(self._before_evaluation, outside)))
        inside = {module for block in blocks for module in block.modules()}
        for module in model.modules():
            own = set(module.parameters(recurse=False))
            needed = [w for w, of in both if own.intersection(of.parameters)]
            if module not in inside and needed:
                handles.append(module.register_forward_pre_hook(partial(self._before_outside, needed)))
                handles.append(module.register_forward_hook(self._after_evaluation))
        handles.append(model.register_forward_hook(self._after_evaluation))
        handles += expect_casts(model, self._actions.weights)

    def _before_block(
        self, number: int, weights: AnyWeights, needed: AnyWeights, block: nn.Module, args: Any, kwargs: Any
    ) -> None:
        if not self._in_forward:  # the model has brought what several layers need, unless the block runs by itself
            self._begin_evaluation(block, needed if self._actions.is_between else weights)
            return
        base = self._pass * self._count
        self._layers.expect_order(number, self._reached - base)
        self._reach(base + number)
        if number == 1:  # the gradient of what the first block reads begins the last phase
            self._reach_with_gradient((args, kwargs), base + self._count - 1)

    def _after_block(self, number: int, block: nn.Module, args: Any, output: Any) -> None:
        if not self._in_forward:
            self._after_evaluation(block, args, output)
            return
        torch.clear_autocast_cache()  # or casts of weights would stay until the forward pass ends
        base = self._pass * self._count
        self._reach_with_gradient(output, base + self._count - 1 - number)
        if number == len(self._layers.blocks):
            self._reach(base + number + 1)

    def _reach_with_gradient(self, values: Any, position: int) -> None:
        """Reach a position of the backward pass when the gradient of one of these values is there."""

        def reach(_: Tensor) -> None:
            if not self._in_backward:
                problem = "goes backward within the forward pass, as by torch.autograd.grad"
                remedy = "Plan activations alone: leave out blocks=, and give a larger budget."
                raise InputError("model", type(self.step.model).__name__, problem, remedy)
            self._reach(position)

        for value in pytree.tree_leaves(values):
            if isinstance(value, Tensor) and value.requires_grad:
                value.register_hook(reach)  # type: ignore[no-untyped-call, unused-ignore]

    def _before_outside(self, weights: AnyWeights, module: nn.Module, _: Any) -> None:
        """Have weights there for a module outside the blocks that runs by itself, or if the last block did not run."""
        if self._actions.is_between:
            self._begin_evaluation(module, weights)
        elif self._in_forward and not all(w.is_shown for w in weights):
            self._reach(self._pass * self._count + self._layers.outer[1])

    def _run_block(self, number: int, points: BlockPoints, /, *args: Any, **kwargs: Any) -> Any:
        # The model's own checkpointing runs a block again in the backward pass, at the same point.
        is_trained = self._in_forward or torch.is_grad_enabled()
        at = self.problem.points(number)[self.schedule.points[number]].name if is_trained else KEEP
        return points.run(at, *args, **kwargs)

    def _has_loss_in_chunks(self) -> bool:
        last = self._layers.outer[1]
        is_after_blocks = self._in_forward and self._reached >= self._pass * self._count + last
        return is_after_blocks and self.problem.points(last)[self.schedule.points[last]].name == CHUNKED_LOSS

    def _before_evaluation(self, weights: AnyWeights, model: nn.Module, _: Any) -> None:
        if self._in_forward:
            return
        if torch.is_grad_enabled():
            remedy = "Call the step, loss = step(*batch), or evaluate the model under torch.no_grad()."
            raise InputError("model", type(self.step.model).__name__, "is called apart from its step", remedy)
        self._loop.clear_gradients()
        self._begin_evaluation(model, weights)
        self._actions.flush()  # amid a step that failed, too

    def _begin_evaluation(self, module: nn.Module, weights: AnyWeights) -> None:
        """Have weights there for a module that runs apart from a step."""
        if self._actions.is_between:
            self._evaluated = module
            self._actions.flush()
        if not self._in_backward:  # where the model's own checkpointing runs a block again
            self._actions.expect_whole()
        self._visits.come(module, weights)

    def _after_evaluation(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._in_forward:
            return
        self._visits.go(module)
        if module is self._evaluated:
            self._evaluated = None
            self._actions.hide()

    def release(self) -> None:
        """Give the model back to plain PyTorch: parameters show their master weights, on the host where they are there,
        and the optimizer has its state. After a step that broke amid its updates both are given back as they are, with
        a warning."""
        if self._released:
            return
        try:
            self._actions.show()
        except InputError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        try:
            self._actions.flush()
        except Exception as error:  # noqa: BLE001 (said below, once all is given back)
            self._actions.break_off(error)
        self._released = True
        with as_in_training():
            self._actions.finish()
            states = self._actions.readable_states()
            self._give_back()
            for p, state in states:
                if state:
                    self._optimizer.state[p] = state
                else:
                    self._optimizer.state.pop(p, None)
        try:
            self._actions.expect_unbroken()
        except InterruptedStepError as error:
            warnings.warn(f"model and optimizer are released half-updated: {error}", RuntimeWarning, stacklevel=2)

    def _refuse_copy(self, *_: Any) -> NoReturn:
        problem = "cannot be copied or pickled under a step: its weights are where the plan has them"
        remedy = "Use model.state_dict(), or release the step first: step.release()."
        raise InputError("model", type(self.step.model).__name__, problem, remedy)

    __deepcopy__ = __reduce_ex__ = _refuse_copy


def expect_unplanned(model: nn.Module) -> None:
    """Refuse, by an InputError, a model that runs under a step: its values are where the plan has them."""
    if model in _UNDER_A_STEP:
        remedy = "Release that step first: step.release()."
        raise InputError("model", type(model).__name__, "runs under another step", remedy)
