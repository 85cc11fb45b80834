"""Layers of a model as a training plan knows them: what runs before the blocks, each block, and what runs after them.

The blocks are the model's largest list of modules, or the modules that the user names. Parameters of a block form a
group for each of the optimizer's own parameter groups, or several where they are many; other large parameters are
groups of their own. Small parameters
(norms, biases) are one group for each of the optimizer's that all layers use, and stay in their own precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from loadmaster.errors import InputError

# Elements of a parameter that is worth a move of its own: copies of less than about 1 MiB do not reach the link's rate.
SMALL_ELEMENTS = 1 << 18
# Parameters of a block are cut into groups of so many elements, and so many groups at most: smaller ones need less room
# while they are updated, and more of them take the processor and the planner longer.
PART_ELEMENTS, _MOST_PARTS = 1 << 24, 4
# Modules whose forward casts their parameters under autocast, and reads them in no other way.
_CASTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class ModelGroup:
    """Parameters that move and are updated together.

    Attributes:
        layers: numbers of the layers that use them, ascending.
        low_precision: for each parameter, whether its layers read it in autocast's precision alone.
        updated_by: number of the optimizer's parameter group; None: frozen.
    """

    name: str
    layers: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]
    low_precision: tuple[bool, ...]
    updated_by: int | None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the master weights."""
        return _bytes(self.parameters)

    def copy_dtypes(self, low: torch.dtype | None) -> list[torch.dtype]:
        """Formats of the copy that layers read: this one where autocast makes it anyway, or (None) all as they are."""
        return [
            low if is_low and low is not None else p.dtype
            for p, is_low in zip(self.parameters, self.low_precision, strict=True)
        ]


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    # Not of their storages: after a step was released, parameters are parts of a larger one.
    return sum(p.numel() * p.element_size() for p in parameters)


def kind_of(block: nn.Module) -> Hashable:
    """Return the block's type with names, shapes and formats of its parameters: blocks with the same do the same."""
    return type(block), *((name, p.shape, p.dtype, p.requires_grad) for name, p in block.named_parameters())


def copy_format(autocast: torch.dtype | None, micro_batches: int) -> torch.dtype | None:
    """Return the format of copies under autocast; None: that of the master weights. So are those of several
    micro-batches, whose gradients add up in the format of the copy: plain PyTorch adds them up in that of the weights.
    """
    return autocast if micro_batches == 1 else None


@dataclass(frozen=True)
class ModelLayers:
    """Layers 0 (before the blocks), 1 .. n (the blocks) and n + 1 (after them), and the groups of all parameters."""

    blocks: tuple[nn.Module, ...]
    names: tuple[str, ...]
    groups: tuple[ModelGroup, ...]

    @property
    def outer(self) -> tuple[int, int]:
        """Numbers of the layers before and after the blocks. Large parameters of theirs are groups of their own, which
        count as used by both until it is known."""
        return 0, len(self.blocks) + 1

    @property
    def outer_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters whose groups count as used before and after the blocks."""
        return tuple(p for of in self.groups if of.layers == self.outer for p in of.parameters)

    def with_uses(self, uses: Mapping[nn.Parameter, tuple[int, ...]]) -> ModelLayers:
        """Return the layers with what is known of the uses of outer parameters."""
        groups = (replace(of, layers=uses.get(of.parameters[0], of.layers)) for of in self.groups)
        return replace(self, groups=tuple(groups))

    def expect_order(self, number: int, reached: int) -> None:
        """Refuse, by an InputError, a block of this number that runs where a pass has reached a later one. (After the
        blocks is where the last one ends.)"""
        if reached > number + (number == len(self.blocks)):
            problem = "runs after a later one of the list has begun"
            remedy = "Name blocks in the order in which they run, each use of a weight in one: fit(..., blocks=[...])."
            raise InputError("blocks", self.names[number], problem, remedy)


def layers_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, blocks: Sequence[nn.Module] | None = None
) -> ModelLayers:
    """Find the layers of a model and the groups of its parameters.

    Raises:
        InputError: no list of blocks is found, the optimizer leaves out a parameter that requires a gradient, or has
            one that is not the model's.
    """
    names = {module: name for name, module in model.named_modules()}
    found = _largest_list(model) if blocks is None else tuple(blocks)
    if any(block not in names for block in found):
        raise InputError("blocks", len(found), "holds a module that is not the model's", "Name modules of the model.")
    inside = [inner for block in found for inner in block.modules()]
    twice = next((block for block in found if inside.count(block) > 1), None)
    if twice is not None:
        remedy = "Name blocks that run once each, or wrap those that share a module: blocks=[...]."
        raise InputError("blocks", names[twice], "is in the list more than once, or in another one of it", remedy)
    block_names = [names[block] for block in found]
    updated_by = _updated_by(model, optimizer)
    groups = tuple(_groups(model, found, updated_by))
    return ModelLayers(found, ("before the blocks", *block_names, "after the blocks"), groups)


def _largest_list(model: nn.Module) -> tuple[nn.Module, ...]:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) > 1]
    best = max(lists, key=lambda one: _bytes(one.parameters()), default=None)
    if best is None or next(best.parameters(), None) is None:
        remedy = "Name the modules that run one after the other: blocks=[...]."
        raise InputError("blocks", None, "are not found: the model has no nn.ModuleList or nn.Sequential", remedy)
    return tuple(best)


def _updated_by(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, int | None]:
    """Map each parameter of the model to the optimizer's group of it; None: frozen."""
    groups = {p: n for n, group in enumerate(optimizer.param_groups) for p in group["params"]}
    of: dict[nn.Parameter, int | None] = {}
    for name, parameter in model.named_parameters():
        number = groups.pop(parameter, None)
        if parameter.requires_grad and number is None:
            remedy = "Give it to the optimizer, or freeze it: requires_grad_(False)."
            raise InputError("optimizer", name, "requires a gradient that nothing would update", remedy)
        of[parameter] = number if parameter.requires_grad else None
    if groups:
        remedy = "Make the optimizer of model.parameters() alone."
        raise InputError("optimizer", len(groups), "is the number of its parameters that are not the model's", remedy)
    return of


def _groups(
    model: nn.Module, blocks: Sequence[nn.Module], updated_by: dict[nn.Parameter, int | None]
) -> Iterator[ModelGroup]:
    used_by: dict[nn.Parameter, set[int]] = {}
    for number, block in enumerate(blocks, start=1):
        for parameter in block.parameters():
            used_by.setdefault(parameter, set()).add(number)
    casting = _cast_only(model)
    gathered: dict[tuple[Any, ...], list[tuple[str, nn.Parameter]]] = {}
    last = len(blocks) + 1
    for name, parameter in model.named_parameters():
        layers = tuple(sorted(used_by.get(parameter, {0, last})))
        key: tuple[Any, ...] = (layers, updated_by[parameter])
        if parameter.numel() < SMALL_ELEMENTS:
            key = (tuple(range(last + 1)), updated_by[parameter])
        elif layers == (0, last):
            key = (*key, name)
        gathered.setdefault(key, []).append((name, parameter))
    parts = ((key, part) for key, members in gathered.items() for part in _parts(key[0], members))
    for key, members in parts:
        layers, number = key[:2]
        parameters = tuple(parameter for _, parameter in members)
        low = tuple(p in casting and p.numel() >= SMALL_ELEMENTS for p in parameters)
        words = members[0][0] if len(members) == 1 else f"{members[0][0]} and {len(members) - 1} more"
        yield ModelGroup(words, layers, parameters, low, number)


def _parts(layers: tuple[int, ...], members: list[tuple[str, nn.Parameter]]) -> list[list[tuple[str, nn.Parameter]]]:
    """Cut the parameters of a block, in their order, into parts of about the same size."""
    sizes = [parameter.numel() for _, parameter in members]
    count = min(_MOST_PARTS, sum(sizes) // PART_ELEMENTS)
    if len(layers) > 1 or count < 2:
        return [members]
    found: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for member, size, end in zip(members, sizes, itertools.accumulate(sizes), strict=True):
        middle = end - size / 2
        found.setdefault(int(middle * count / sum(sizes)), []).append(member)
    return list(found.values())


def _cast_only(model: nn.Module) -> set[nn.Parameter]:
    """Collect the parameters that are read by modules alone whose forward casts them."""
    casting: set[nn.Parameter] = set()
    others: set[nn.Parameter] = set()
    for module in model.modules():
        plain = type(module) in _CASTING
        (casting if plain else others).update(module.parameters(recurse=False))
    return casting - others
