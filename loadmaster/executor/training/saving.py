"""Model and optimizer of a planned step save whole, in PyTorch's own forms, wherever their bytes are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError


class Values(Protocol):
    """Source of all values of a step."""

    def settle(self) -> None:
        """Run and await all updates; raises if a step broke amid them."""

    def master_values(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Every parameter with its master weights."""

    def state_values(self) -> list[tuple[nn.Parameter, dict[str, Any]]]:
        """Every trained parameter with its optimizer state."""

    def first_states(self) -> list[tuple[nn.Parameter, dict[str, Any]]]:
        """Every trained parameter with the state that a first step without gradients makes."""


class StateElsewhere(dict[str, Any]):
    """Entry of an optimizer's state for a parameter whose state is where the plan has it: empty, and no use of it
    passes in silence.

    Such an entry tells PyTorch's own functions that the optimizer has begun: without any, those of
    torch.distributed.checkpoint would make a step for new state.
    """

    def _refuse(self, *_: Any) -> NoReturn:
        problem = "cannot be copied, pickled or read under a step: it is where the plan has it"
        remedy = "Use optimizer.state_dict(), or release the step first: step.release()."
        raise InputError("optimizer", "state", problem, remedy)

    __deepcopy__ = __reduce_ex__ = __missing__ = _refuse


def saved_whole(model: nn.Module, optimizer: torch.optim.Optimizer, of: Values) -> list[Any]:
    """Register hooks by which ``state_dict()`` of the optimizer, the model and any of its modules give all values;
    returns their handles.

    Loading into any of them is refused, since the values are elsewhere: load first, then make the step.
    """
    numbers = {p: n for n, (p, _) in enumerate(of.master_values())}

    def weights(module: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        own = list(module.named_parameters(recurse=False, remove_duplicate=False))
        if not own:
            return
        of.settle()
        values = of.master_values()
        for name, parameter in own:
            if parameter in numbers and prefix + name in state:
                state[prefix + name] = values[numbers[parameter]][1]

    def fill(_: torch.optim.Optimizer) -> None:
        of.settle()
        states = of.state_values()
        if not any(state for _, state in states) and _is_asked_by_checkpoint():
            states = of.first_states()  # as those functions have it of an optimizer that has not begun
        for parameter, state in states:
            if state:
                optimizer.state[parameter] = state
            else:
                optimizer.state.pop(parameter, None)

    def empty(*_: Any) -> None:
        for parameter, _state in of.state_values():
            optimizer.state[parameter] = StateElsewhere()

    handles = [
        optimizer.register_state_dict_pre_hook(fill),
        optimizer.register_state_dict_post_hook(empty),
        optimizer.register_load_state_dict_pre_hook(_refusal("optimizer")),
    ]
    for module in model.modules():
        handles.append(module.register_state_dict_post_hook(weights))  # type: ignore[no-untyped-call, unused-ignore]
        refuse = _refusal("model")
        handles.append(module.register_load_state_dict_pre_hook(refuse))  # type: ignore[no-untyped-call, unused-ignore]
    empty()
    return handles


def _is_asked_by_checkpoint() -> bool:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.distributed.checkpoint.state_dict":
        frame = frame.f_back
    return frame is not None


def _refusal(what: str) -> Callable[..., None]:
    def refuse(*_: Any) -> None:
        remedy = f"Release the step (step.release()), load the {what}, and make the step again."
        raise InputError(what, "load_state_dict", "cannot load: its values are where the plan has them", remedy)

    return refuse
