"""Losses in chunks of rows: the same loss and gradients as in plain PyTorch, however logits become a loss."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.executor.training import chunked_loss
from loadmaster.executor.training.chunked_loss import Heads, Logits, later
from tests.executor.training.side_by_side import EACH_WAY, STEPS, Both, Way, momentum, trained_equally

WIDTH, CLASSES, BATCH, LENGTH = 6, 11, 2, 5
Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def three_rows_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS", 3 * CLASSES + 1)


def shifted(logits: Tensor, tokens: Tensor) -> Tensor:
    """As transformers does: in single precision, shifted by a position."""
    flat = logits.float()[..., :-1, :].contiguous().view(-1, logits.size(-1))
    return F.cross_entropy(flat, tokens[:, 1:].reshape(-1))


def padded(logits: Tensor, tokens: Tensor) -> Tensor:
    """With padding left out, and classes of unequal weight."""
    tokens = tokens.where(tokens != 3, -100).flatten()
    weight = torch.linspace(0.5, 1.5, logits.shape[-1], dtype=logits.dtype)
    return nn.CrossEntropyLoss(weight)(logits.flatten(0, 1), tokens)


def capped(logits: Tensor, tokens: Tensor) -> Tensor:
    """With a soft cap, and labels smoothed; summed up and divided."""
    logits = torch.tanh(logits / 3.0) * 3.0
    summed = F.cross_entropy(logits.reshape(-1, CLASSES), tokens.flatten(), reduction="sum", label_smoothing=0.1)
    return summed / len(logits.flatten(0, 1))


def masked(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of some positions alone, and one loss more of others."""
    is_masked = tokens % 2 == 0
    both = F.cross_entropy(logits[is_masked], tokens[is_masked]), F.cross_entropy(logits[:, 0], tokens[:, 0])
    return both[0] + 0.3 * both[1]


def transposed(logits: Tensor, tokens: Tensor) -> Tensor:
    """With classes where PyTorch's loss has them."""
    return F.cross_entropy(logits.transpose(1, 2), tokens, ignore_index=3)


def permuted(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].float().permute(0, 2, 1), tokens[:, 1:], label_smoothing=0.1)


IN_CHUNKS = [shifted, padded, capped, masked, transposed, permuted]


def by_hand(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.nll_loss(torch.log_softmax(logits, -1).flatten(0, 1), tokens.flatten())


def of_some_classes(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[..., :WIDTH].flatten(0, 1), tokens.flatten() % WIDTH)


def turned_otherwise(logits: Tensor, tokens: Tensor) -> Tensor:
    """By other dimensions, or read in another way than by the loss."""
    other = F.cross_entropy(logits.transpose(0, 1).flatten(0, 1), tokens.t().flatten())
    return other + F.cross_entropy(logits.transpose(1, 2).contiguous(), tokens) + logits.permute(0, 2, 1)[0].mean()


def of_each(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").square().mean()


def soft(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), F.one_hot(tokens.flatten(), CLASSES).to(logits.dtype))


def overwritten(logits: Tensor, tokens: Tensor) -> Tensor:
    """A view shows what is written to the logits afterwards, a copy does not."""
    view, half = logits.view(-1, CLASSES), logits.mul(0.5)
    logits.div_(2.0)
    return F.cross_entropy(view, tokens.flatten()) + F.cross_entropy(half[0], tokens[0])


def with_accuracy(logits: Tensor, tokens: Tensor) -> Tensor:
    right = (logits.argmax(-1) == tokens).double().mean()
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) * (1 + right)


COMPUTED = [by_hand, of_some_classes, turned_otherwise, of_each, soft, overwritten, with_accuracy]


def case(dtype: torch.dtype, *, bias: bool = False) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, CLASSES, bias=bias, dtype=dtype)
    hidden = torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
    return head, hidden, torch.randint(0, CLASSES, (BATCH, LENGTH))


def gradients(
    loss: Loss, head: nn.Linear, hidden: Tensor, tokens: Tensor, *, chunks: bool, scale: float = 1.0
) -> tuple[int, list[Tensor]]:
    """Number of losses in chunks; the loss, and all gradients of it times a scale."""
    counted: list[None] = []
    head, hidden = copy.deepcopy(head), hidden.detach().clone().requires_grad_()
    result = later(head, hidden * 1, lambda: counted.append(None)) if chunks else head(hidden * 1)
    assert result is not None
    value = loss(result, tokens)
    (value * scale).backward()
    found = [value.detach(), hidden.grad, *(p.grad for p in head.parameters())]
    return len(counted), [one for one in found if one is not None]


@pytest.mark.parametrize("loss", IN_CHUNKS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_loss_in_chunks_is_plain_pytorchs(loss: Loss, bias: bool) -> None:
    given = case(torch.float64, bias=bias)
    _, plain = gradients(loss, *given, chunks=False, scale=1 / 3)
    count, chunked = gradients(loss, *given, chunks=True, scale=1 / 3)
    assert count == (2 if loss is masked else 1)
    torch.testing.assert_close(chunked, plain, rtol=1e-6 if loss in (shifted, permuted) else 1e-12, atol=1e-7)


@pytest.mark.parametrize("loss", COMPUTED)
def test_what_cannot_run_in_chunks_gets_the_logits(loss: Loss) -> None:
    given = case(torch.float64)
    _, plain = gradients(loss, *given, chunks=False)
    count, chunked = gradients(loss, *given, chunks=True)
    assert count == 0
    torch.testing.assert_close(chunked, plain, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_low_precision_is_rounded_no_more_than_in_plain_pytorch(scale: float) -> None:
    head, hidden, tokens = case(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        _, plain = gradients(shifted, head, hidden, tokens, chunks=False, scale=scale)
        count, chunked = gradients(shifted, head, hidden, tokens, chunks=True, scale=scale)
    _, exact = gradients(shifted, head.double(), hidden.double(), tokens, chunks=False, scale=scale)
    assert count == 1
    assert [one.dtype for one in chunked] == [one.dtype for one in plain]
    for of_chunks, of_plain, value in zip(chunked, plain, exact, strict=True):
        off = (of_plain.double() - value).norm() / value.norm()
        assert (of_chunks.double() - value).norm() / value.norm() <= 1.5 * off + 1e-3


def test_no_row_counts_where_all_are_padding() -> None:
    head, hidden, tokens = case(torch.float32)

    def nothing(logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), torch.full_like(tokens, -100).flatten())

    found = [gradients(nothing, head, hidden, tokens, chunks=chunks)[1] for chunks in (False, True)]
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


def test_logits_tell_what_they_are_before_they_are_computed() -> None:
    head, hidden, _ = case(torch.float32)
    logits = later(head, hidden, lambda: None)
    assert isinstance(logits, Logits)
    assert (logits.shape, logits.dtype, logits.device) == ((BATCH, LENGTH, CLASSES), torch.float32, hidden.device)
    assert (logits.size(-1), logits.dim(), len(logits), logits.requires_grad) == (CLASSES, 3, BATCH, True)
    assert logits.computed is None
    assert torch.equal(logits + 0, head(hidden))


def test_losses_that_must_not_run_in_chunks() -> None:
    head, hidden, tokens = case(torch.float32)
    with torch.no_grad():
        assert later(head, hidden, lambda: None) is None
    assert later(head.half(), hidden.half(), lambda: None) is None  # gradients below its range
    square = nn.Linear(WIDTH, WIDTH)
    assert later(square, hidden, lambda: None) is None
    low, rows = nn.Linear(WIDTH, CLASSES, dtype=torch.bfloat16), hidden.bfloat16()
    assert gradients(transposed, low, rows, tokens, chunks=True)[0] == 0
    assert gradients(lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()), low, rows, tokens, chunks=True)[0] == 0


def test_heads_are_wide_and_outside_of_the_blocks() -> None:
    block = nn.Sequential(nn.Linear(4, 8))
    model = nn.ModuleDict({"block": block, "head": nn.Linear(4, 9), "narrow": nn.Linear(9, 4)})
    heads = Heads(model, [block], lambda: True)
    assert heads.layers == [model["head"]]
    assert isinstance(model["head"](torch.ones(1, 4)), Logits)
    heads.remove()
    assert type(model["head"](torch.ones(1, 4))) is Tensor


@EACH_WAY
def test_a_whole_step_with_its_loss_in_chunks_trains_as_plain_pytorch(ways: tuple[Way, ...]) -> None:
    both = Both(*ways, make=momentum, accumulate=3, max_norm=0.3, loss_in_chunks=True)
    trained_equally(both)
    assert both.planned.losses_in_chunks == 3 * STEPS
    both.model.eval(), both.plain.eval()
    with torch.no_grad():
        torch.testing.assert_close(both.model(both.batches[0]), both.plain(both.batches[0]))
    assert both.planned.losses_in_chunks == 3 * STEPS
    both.planned.release()
    both.model(both.batches[0]).backward()
    assert both.planned.losses_in_chunks == 3 * STEPS
