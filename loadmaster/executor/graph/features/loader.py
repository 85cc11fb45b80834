"""Mini-batches with their features: sampling, gathering and training overlap.

One thread samples, batch after batch in order, so that a sampler with a generator gives the same batches in every run.
On a GPU it samples on one stream and gathers on another: while rows of a batch come over the link, the next one is
sampled, and the training step runs on the stream of whoever iterates.

PyTorch's allocator hands out what a batch held once the last reference is gone, in the order of the stream that made
it, while the training step may still read it. So a used batch goes back to the thread that makes them, which drops it
when its streams wait for that step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.gather import INDEX_DTYPES, expect_nodes
from loadmaster.executor.graph.features.hot_rows import HotRows
from loadmaster.executor.graph.features.unified_tensor import UnifiedTensor
from loadmaster.executor.torch_private.operators import pytree

Rows = Tensor | HotRows
Nodes = Tensor | Mapping[str, Tensor]


class Batch(NamedTuple):
    """Mini-batch that one training step takes; its ``blocks`` are what the sampler made of the seeds.

    Attributes:
        seeds: int [batch], nodes that the step computes something for.
        input_nodes: nodes whose features the step reads; by node type, where the features are.
        features: [input nodes, ...]; by node type, where they are given so.
        labels: [batch, ...], or None without labels.
    """

    seeds: Tensor
    input_nodes: Nodes
    blocks: Any
    features: Tensor | dict[str, Tensor]
    labels: Tensor | None


# A batch that the trainer has had, and when its work on it is over.
_Used = tuple[Batch | None, torch.cuda.Event | None]


class FeatureLoader:
    """Iterates over batches of seeds with their sampled neighbours, features and labels, made ahead of their use.

    Each ``for`` is one epoch. An exception of the sampler is raised where its batch would have come; leaving the loop
    early, by ``break`` or an exception, ends the work that was ahead.

    Args:
        seeds: int [seeds], nodes to train on, on the device that the sampler wants them on.
        sample: seeds -> (blocks, nodes whose features are read); it is called from one thread, in order.
        features: [nodes, ...]: a unified tensor, hot rows, or any tensor that takes the sampler's nodes as an index. Or
            one by node type, and the sampler gives nodes by node type.
        labels: [nodes, ...], likewise, read at the seeds.
        batch_size: seeds of a batch; an epoch's last one may be smaller, and is left out by ``drop_last``.
        shuffle: whether each epoch has an order of its own, drawn by ``generator`` on the host.
        prefetch: batches made ahead, at least one.
        node_count: nodes of the graph, which features and labels must have rows for.

    Raises:
        InputError: seeds that name no nodes, features or labels with other rows than nodes, or numbers below one.
    """

    def __init__(
        self,
        seeds: Tensor,
        sample: Callable[[Tensor], tuple[Any, Nodes]],
        features: Rows | Mapping[str, Rows],
        labels: Rows | None = None,
        *,
        batch_size: int = 1024,
        shuffle: bool = True,
        drop_last: bool = False,
        prefetch: int = 2,
        generator: torch.Generator | None = None,
        node_count: int | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("prefetch", prefetch)):
            if value < 1:
                raise InputError(name, value, "is less than one", "Give at least 1.")
        if seeds.dim() != 1 or seeds.dtype not in INDEX_DTYPES:
            remedy = "Give int64 or int32 [seeds]."
            raise InputError("seeds", f"{seeds.dtype} {list(seeds.shape)}", "does not name nodes", remedy)
        of_nodes = None if isinstance(features, Mapping) else features.shape[0]
        _expect_rows("features", of_nodes, node_count)
        of_labels = None if labels is None else labels.shape[0]
        _expect_rows("labels", of_labels, of_nodes if node_count is None else node_count)
        counted = next((rows for rows in (node_count, of_nodes, of_labels) if rows is not None), None)
        if counted is not None:
            expect_nodes("seeds", seeds, counted)
        self.seeds, self.sample, self.features, self.labels = seeds, sample, features, labels
        self.batch_size, self.shuffle, self.drop_last, self.prefetch = batch_size, shuffle, drop_last, prefetch
        self.generator = generator
        of_features = [*features.values()] if isinstance(features, Mapping) else [features]
        self._lanes = _lanes([*of_features, seeds, *([] if labels is None else [labels])])

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        count = self.seeds.numel()
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._seed_batches())
        worker = ThreadPoolExecutor(1, thread_name_prefix="feature-loader")
        ahead: deque[Future[tuple[Batch, torch.cuda.Event | None]]] = deque()
        used: deque[_Used] = deque([(None, self._now())])
        try:
            for seeds in islice(batches, self.prefetch):
                ahead.append(worker.submit(self._make, seeds, used))
            while ahead:
                batch, made = ahead.popleft().result()
                self._hand_over(batch, made)
                for seeds in islice(batches, 1):
                    ahead.append(worker.submit(self._make, seeds, used))
                yield batch
                used.append((batch, self._now()))
                del batch
        finally:
            worker.shutdown(wait=True, cancel_futures=True)
            # The trainer's stream, whose memory the seeds are, waits for batches that nobody took.
            for lane in self._lanes or ():
                torch.cuda.current_stream(lane.device).wait_stream(lane)

    def _seed_batches(self) -> Iterator[Tensor]:
        order = self.seeds
        if self.shuffle:
            order = order[torch.randperm(order.numel(), generator=self.generator).to(order.device)]
        return iter(torch.split(order, self.batch_size)[: len(self)])

    def _make(self, seeds: Tensor, used: deque[_Used]) -> tuple[Batch, torch.cuda.Event | None]:
        """One batch, on the worker's thread, after dropping those that were used."""
        while used:
            over = used[0][1]
            for lane in self._lanes or ():
                assert over is not None
                lane.wait_event(over)
            used.popleft()
        if self._lanes is None:
            return self._gathered(seeds, *self.sample(seeds)), None
        sampling, gathering = self._lanes
        with torch.cuda.device(sampling.device):
            with torch.cuda.stream(sampling):
                blocks, nodes = self.sample(seeds)
            gathering.wait_stream(sampling)
            with torch.cuda.stream(gathering):
                for tensor in _on_gpu([seeds, nodes]):
                    tensor.record_stream(gathering)
                batch = self._gathered(seeds, blocks, nodes)
                made = gathering.record_event()
        return batch, made

    def _gathered(self, seeds: Tensor, blocks: Any, nodes: Nodes) -> Batch:
        labels = None if self.labels is None else self.labels[seeds]
        if not isinstance(self.features, Mapping):
            return Batch(seeds, nodes, blocks, self.features[_one(nodes)], labels)
        if not isinstance(nodes, Mapping) or not set(nodes) <= set(self.features):
            found = sorted(nodes) if isinstance(nodes, Mapping) else type(nodes).__name__
            remedy = "Return nodes by type, as the features."
            raise InputError("sample", found, f"gives no nodes of {sorted(self.features)}", remedy)
        return Batch(seeds, nodes, blocks, {kind: self.features[kind][index] for kind, index in nodes.items()}, labels)

    def _now(self) -> torch.cuda.Event | None:
        """The moment at which what the trainer has queued so far is over; None where nothing is queued."""
        if self._lanes is None:
            return None
        now: torch.cuda.Event = torch.cuda.current_stream(self._lanes[0].device).record_event()
        return now

    def _hand_over(self, batch: Batch, made: torch.cuda.Event | None) -> None:
        """Let the trainer's stream wait for a batch, and its memory for that stream."""
        if self._lanes is None or made is None:
            return
        here = torch.cuda.current_stream(self._lanes[0].device)
        here.wait_event(made)
        for tensor in _on_gpu(batch):
            tensor.record_stream(here)


def _on_gpu(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor) and t.is_cuda]


def _one(nodes: Nodes) -> Tensor:
    if isinstance(nodes, Mapping):
        remedy = "Give features so."
        raise InputError("sample", sorted(nodes), "gives nodes by type, the features have no types", remedy)
    return nodes


def _lanes(sources: list[Any]) -> tuple[torch.cuda.Stream, torch.cuda.Stream] | None:
    """A stream to sample on and one to gather on, if anything is read by a GPU."""
    for source in sources:
        table = source.table if isinstance(source, HotRows) else source
        device = table.result_device if isinstance(table, UnifiedTensor) else table.device
        if device.type == "cuda":
            return torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return None


def _expect_rows(name: str, rows: int | None, node_count: int | None) -> None:
    if rows is not None and node_count is not None and rows != node_count:
        remedy = "Give a row for each node."
        raise InputError(name, f"{rows} rows", f"does not have one row for each of {node_count} nodes", remedy)
