"""Trial steps: a planned step is run and measured, and the user's model is left exactly as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.measure import Measurement, measure
from loadmaster.executor.steps.resident import allocated_bytes, device_of, one_of_each_storage, optimizer_state_bytes
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.unchanged import unchanged

MISSING_SHARE = 0.02  # of the budget: counted beyond what there is where a step runs out of memory; nobody knows
WARM_UP = 2  # the first step compiles, the second makes what libraries make lazily

Call = Callable[..., torch.Tensor]


def runner(call: Call, step: Step, batch: AnyBatch, *, gradients_held: bool) -> Callable[[], None]:
    """Make a call of one forward and backward pass; gradients stay and are added to, or are dropped at its end."""
    given = batch_of(batch)
    leaves = [t for t in (*step.parameters(), *tensors(batch)) if t.is_leaf and t.requires_grad]

    @torch.enable_grad()
    def run() -> None:
        loss = call(*given.args, **given.kwargs)
        # In training autocast ends here, and with it go its copies of the weights; around a trial it goes on.
        torch.clear_autocast_cache()
        loss.backward()  # type: ignore[no-untyped-call]
        if not gradients_held:
            for tensor in leaves:
                tensor.grad = None

    return run


def run_trial(
    call: Call,
    step: Step,
    batch: AnyBatch,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    gradients_held: bool = False,
    repeats: int = 5,
    warm_up: int = WARM_UP,
    warmed_up: Callable[[], None] = lambda: None,
) -> Measurement:
    """Measure a step, inside :func:`unchanged`.

    Peaks count what training will hold: gradients set aside are left out, and optimizer state that the first step of
    the optimizer makes is added. On CUDA the allocator gives back what warming up has left in its cache, so that the
    reserved bytes are those of the steps themselves.

    Args:
        call: what takes the batch and returns the loss.
        step: model and loss.
        repeats: timed steps.
        warm_up: steps before them.
        warmed_up: called when it is compiled, before anything is measured.
    """
    device = device_of(step, batch)
    state = [] if optimizer is None else [t for s in optimizer.state.values() for t in tensors(list(s.values()))]
    coming_bytes = 0 if optimizer is None or state else optimizer_state_bytes(optimizer)
    with unchanged(step, batch) as set_aside:
        run = runner(call, step, batch, gradients_held=gradients_held)
        for _ in range(warm_up):
            run()
        warmed_up()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        gradients = [p.grad for p in step.parameters() if p.grad is not None]
        resident = (*step.parameters(), *step.buffers(), *tensors(batch), *state, *gradients)
        found = measure(run, resident=resident, device=device, warmup=0, repeats=repeats)
    # What is resident on the CPU was listed; CUDA's allocator counts everything there is.
    counted = one_of_each_storage(t for t in set_aside if t.is_cuda)
    difference = coming_bytes - allocated_bytes(counted)
    return Measurement(
        found.peak_bytes + difference,
        found.resident_bytes + difference,
        found.step_us,
        found.requested_bytes + coming_bytes - sum(t.untyped_storage().nbytes() for t in counted),
        found.reserved_bytes + difference,
    )


def ran_out(device: torch.device, budget_bytes: int) -> Measurement:
    """Stand-in for the measurement of a step that needs more than the budget and than this process can have.

    Call it when the exception is gone: its frames hold what the step had.
    """
    gc.collect()
    present_bytes = available_bytes = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        present_bytes = torch.cuda.memory_allocated(device)
        available_bytes = torch.cuda.memory_reserved(device) + torch.cuda.mem_get_info(device)[0]
    needed_bytes = max(budget_bytes, available_bytes) + int(MISSING_SHARE * budget_bytes)
    return Measurement(needed_bytes, present_bytes, 0.0, needed_bytes, needed_bytes, ran_out=True)
