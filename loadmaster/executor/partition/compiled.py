"""A pass of a step on shares as one graph of local operators and collectives, compiled by Inductor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.executor.partition.split_step import SplitStep


class CompiledPass:
    """Some operators of a step, compiled at the first call for the shapes and strides that come then.

    Args:
        first, last: of the operators, as for :meth:`SplitStep.run`.
        wanted: what is kept of what they make; None: what they do not let go.
    """

    def __init__(self, split: SplitStep, first: int, last: int, wanted: Sequence[int] | None = None) -> None:
        self._split, self._first, self._last, self._wanted = split, first, last, wanted
        self._run: Callable[[list[Tensor]], Sequence[Tensor]] | None = None
        self._reads: list[int] = []
        self._makes: list[int] = []
        self._counts: Counter[str] = Counter()

    def __call__(self, held: MutableMapping[int, Tensor]) -> None:
        """As :meth:`SplitStep.run`; with ``wanted`` given, nothing else is left."""
        if self._run is None:
            self._compile(held)
            assert self._run is not None
        shares = [held[n] for n in self._reads]
        if self._wanted is not None:
            held.clear()
        self._split.redistribute.counts.update(self._counts)
        # The list is emptied within, so that a share is freed at its last use.
        held.update(zip(self._makes, self._run(shares), strict=True))

    def _compile(self, held: MutableMapping[int, Tensor]) -> None:
        self._reads = list(held)
        counts = self._split.redistribute.counts
        before = counts.copy()

        def run(*shares: Tensor) -> list[Tensor]:
            own = dict(zip(self._reads, shares, strict=True))
            self._split.run(own, self._first, self._last)
            self._makes = [n for n in own if n not in held] if self._wanted is None else list(self._wanted)
            return [own[n] for n in self._makes]

        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(share) for share in held.values()]
        with mode, torch.no_grad():
            graph = make_fx(run, decomposition_table=select_decomp_table())(*fakes)
        self._counts = counts - before
        counts.clear()
        counts.update(before)
        # The pass that follows is compiled for the strides of these results.
        made: Any = graph.graph.output_node()
        made.meta["user_visible_output_idxs"] = list(range(len(self._makes)))
        # The analysis of tilings ends in an error for sums of convolutions' channels (PyTorch 2.11).
        with config.patch({"triton.coalesce_tiling_analysis": False}):
            self._run = compile_fx_inner(graph, fakes)
