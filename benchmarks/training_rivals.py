"""Training steps without a plan, as people write them: plain, checkpointed, FSDP2 with CPU offload, and a schedule by
hand that keeps the moments of some blocks in pinned host memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Loop = Callable[[], Tensor]
Batches = Iterator[Tensor]
WORDS = 32000
# Blocks whose moments are fetched ahead.
AHEAD = 3


class Block(nn.Module):
    """A block of Llama: grouped-query attention and a gated feed-forward network, each after a root-mean-square norm.

    Positions are not encoded: they cost little, and change nothing that is measured.
    """

    def __init__(self, width: int, hidden: int, heads: int, pairs: int) -> None:
        super().__init__()
        self.heads, self.pairs = heads, pairs
        self.attention_norm, self.feed_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width * pairs // heads, bias=False)
        self.value = nn.Linear(width, width * pairs // heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(batch, length, count, width // self.heads).transpose(1, 2)

        y = self.attention_norm(x)
        q, k, v = heads(self.query(y), self.heads), heads(self.key(y), self.pairs), heads(self.value(y), self.pairs)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        y = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A language model of the size asked for, which returns its loss."""

    def __init__(self, width: int, hidden: int, blocks: int, heads: int, pairs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width, hidden, heads, pairs) for _ in range(blocks))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)
        self.checkpointed = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits = self.head(self.norm(x))[:, :-1].reshape(-1, WORDS)
        return F.cross_entropy(logits.float(), tokens[:, 1:].reshape(-1))


SIZES = {"llama-3b": (3072, 8192, 28, 24, 8), "llama-8b": (4096, 14336, 32, 32, 8), "llama-small": (256, 512, 4, 4, 2)}


def autocast() -> torch.autocast:
    """The precision of all steps."""
    return torch.autocast("cuda", torch.bfloat16)


def loop_of(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Loop:
    """Make a step of training, which returns its loss."""

    def step() -> Tensor:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    return step


def plain(model: Llama, batches: Batches, *, checkpointed: bool, compiled: bool) -> Loop:
    """A step as in PyTorch's tutorials."""
    model.checkpointed = checkpointed
    if compiled:
        for block in model.blocks:
            block.compile()

    def loss() -> Tensor:
        with autocast():
            return model(next(batches))

    return loop_of(loss, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))


def fsdp(model: Llama, batches: Batches) -> Loop:
    """FSDP2 with its CPU offload, on one GPU: all state on the host, blocks checkpointed."""
    from torch import distributed
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    if not distributed.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
        distributed.init_process_group("cpu:gloo,cuda:nccl")
    model.checkpointed = True
    model.cpu()
    options = {
        "offload_policy": CPUOffloadPolicy(pin_memory=True),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    }
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return loop_of(lambda: model(next(batches)), torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))


class ByHand:
    """Checkpointed blocks, updated inside the backward pass. The moments of all but the first ``resident`` blocks are
    in pinned host memory: they are fetched some blocks ahead, and sent back while the next block computes."""

    def __init__(self, model: Llama, batches: Batches, resident: int) -> None:
        self.model, self.batches, self.count = model, batches, 0
        model.checkpointed = True
        self.up, self.down, self.main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
        self.groups = [list(block.parameters()) for block in model.blocks]
        inside = {p for group in self.groups for p in group}
        self.others = [p for p in model.parameters() if p not in inside]
        self.sizes = [sum(p.numel() for p in group) for group in self.groups]
        self.here = {i: torch.zeros(2, n, device="cuda") for i, n in enumerate(self.sizes[:resident])}
        away = range(resident, len(self.groups))
        self.there = {i: torch.zeros(2, self.sizes[i], pin_memory=True) for i in away}
        self.of_others = [torch.zeros(2, p.numel(), device="cuda") for p in self.others]
        self.slots = [torch.empty(2, max(self.sizes), device="cuda") for _ in range(AHEAD)]
        self.freed: list[torch.cuda.Event | None] = [None] * AHEAD
        self.ready: dict[int, tuple[int, torch.cuda.Event]] = {}
        self.order = [*reversed(away)]
        self.fetched, self.left = 0, {}
        for i, group in enumerate(self.groups):
            for p in group:
                p.register_post_accumulate_grad_hook(lambda _, i=i: self.complete(i))

    def fetch(self) -> None:
        """Begin to fetch the moments of the next block."""
        if self.fetched == len(self.order):
            return
        i, slot = self.order[self.fetched], self.fetched % AHEAD
        self.fetched += 1
        freed = self.freed[slot]
        if freed is not None:
            self.up.wait_event(freed)
        with torch.cuda.stream(self.up):
            self.slots[slot][:, : self.sizes[i]].copy_(self.there[i], non_blocking=True)
            self.ready[i] = slot, self.up.record_event()

    def complete(self, i: int) -> None:
        """Update a block once all its gradients are there."""
        self.left[i] -= 1
        if self.left[i]:
            return
        if i in self.here:
            self.update(self.groups[i], self.here[i])
            return
        slot, ready = self.ready[i]
        moments = self.slots[slot][:, : self.sizes[i]]
        self.main.wait_event(ready)
        self.update(self.groups[i], moments)
        self.down.wait_event(self.main.record_event())
        with torch.cuda.stream(self.down):
            self.there[i].copy_(moments, non_blocking=True)
            self.freed[slot] = self.down.record_event()
        self.fetch()

    def update(self, parameters: list[nn.Parameter], moments: Tensor) -> None:
        """Run AdamW for some parameters, whose moments are packed."""
        lengths = [p.numel() for p in parameters]
        first, second = (
            [part.view_as(p) for part, p in zip(row.split(lengths), parameters, strict=True)] for row in moments
        )
        torch._fused_adamw_(
            [p.data for p in parameters],
            [p.grad for p in parameters],
            first,
            second,
            [],
            [torch.tensor(float(self.count), device="cuda") for _ in parameters],
            lr=1e-4,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.01,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        for p in parameters:
            p.grad = None

    def __call__(self) -> Tensor:
        """One step."""
        self.count, self.fetched = self.count + 1, 0
        self.left = {i: len(group) for i, group in enumerate(self.groups)}
        for _ in range(AHEAD):
            self.fetch()
        with autocast():
            loss = self.model(next(self.batches))
        loss.backward()
        for p, moments in zip(self.others, self.of_others, strict=True):
            self.update([p], moments)
        return loss.detach()
