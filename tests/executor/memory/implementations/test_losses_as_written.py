"""The loss of a large head, as libraries and people write it: found in joint graphs, with PyTorch's gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from joint_graphs import prepared_step
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.executor import capture
from loadmaster.models.memory import plain
from tests.libraries import imported

V, IGNORED = 40, -100
Loss = Callable[[Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Embeddings, a layer, and a head of more classes than it is wide, over whole sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(V, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, V, bias=False)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(tokens)).tanh())


def gpt2(logits: Tensor, labels: Tensor) -> Tensor:
    # transformers up to 4.45, and all that was copied from it
    shifted, targets = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    return nn.CrossEntropyLoss()(shifted.view(-1, shifted.size(-1)), targets.view(-1))


def llama(logits: Tensor, labels: Tensor) -> Tensor:
    # transformers since 4.46: labels are shifted, logits are not
    labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return F.cross_entropy(logits.float().view(-1, V), labels.view(-1), ignore_index=IGNORED, reduction="mean")


def llama_per_items(logits: Tensor, labels: Tensor) -> Tensor:
    # the same under gradient accumulation: the sum by the number of items
    labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, V), labels.view(-1), ignore_index=IGNORED, reduction="sum") / 77


def nanogpt(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.clamp(min=-1).view(-1), ignore_index=-1)


def sliced_and_widened(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].float().reshape(-1, V), labels[:, 1:].reshape(-1))


def classes_second(logits: Tensor, labels: Tensor) -> Tensor:
    # x-transformers and others: rearrange(logits, "b n c -> b c n")
    return F.cross_entropy(logits.permute(0, 2, 1), labels)


def classes_second_and_sliced(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:].clamp(min=3), ignore_index=3)


def after_a_prefix(logits: Tensor, labels: Tensor) -> Tensor:
    # captioning: the positions of the image have no labels
    return F.cross_entropy(logits[:, 20:].reshape(-1, V), labels[:, 20:].reshape(-1))


def every_second(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[1:, ::2].flatten(0, 1), labels[1:, 1::2].flatten())


def last_position(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, -1], labels[:, 1])


def positions_first(logits: Tensor, labels: Tensor) -> Tensor:
    # fairseq trains on (time, batch)
    return F.cross_entropy(logits.transpose(0, 1).reshape(-1, V), labels.t().reshape(-1))


def log_softmax_and_nll(logits: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(logits, dim=-1).view(-1, V), labels.view(-1))


def rows_averaged(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="none").mean()


def rows_summed_in_shape(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return losses.sum()


def smoothed_and_shifted(logits: Tensor, labels: Tensor) -> Tensor:
    shifted = logits[:, :-1].reshape(-1, V)
    return F.cross_entropy(shifted, labels[:, 1:].reshape(-1), label_smoothing=0.1)


def weighted_and_shifted(logits: Tensor, labels: Tensor) -> Tensor:
    weights = torch.linspace(0.1, 2.0, V, dtype=logits.dtype)
    return F.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1), weights)


def bart(logits: Tensor, labels: Tensor) -> Tensor:
    # BART, Marian, Pegasus: a bias that is no parameter, one row of its own
    logits = logits + torch.linspace(-1, 1, V, dtype=logits.dtype)[None]
    return F.cross_entropy(logits.view(-1, V), labels.view(-1))


def cohere(logits: Tensor, labels: Tensor) -> Tensor:
    # CohereForCausalLM
    return llama(logits * 0.0625, labels)


def granite(logits: Tensor, labels: Tensor) -> Tensor:
    # GraniteForCausalLM
    return llama(logits / 8.0, labels)


def gemma2(logits: Tensor, labels: Tensor) -> Tensor:
    # Gemma2ForCausalLM
    logits = logits / 3.0
    logits = torch.tanh(logits)
    logits = logits * 3.0
    return gpt2(logits, labels)


def modded_nanogpt(logits: Tensor, labels: Tensor) -> Tensor:
    logits = 30 * torch.sigmoid(logits / 7.5)
    return F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="sum")


def softened_and_biased(logits: Tensor, labels: Tensor) -> Tensor:
    # distillation's temperature, after a bias and before a cap that turns signs
    row = torch.linspace(-1, 1, V, dtype=logits.dtype)
    return F.cross_entropy((-4.0 * ((logits + row) / 2 / -4.0).tanh()).view(-1, V), labels.view(-1))


def open_lm(logits: Tensor, labels: Tensor) -> Tensor:
    # CrossEntropyLossWithZLoss: PaLM's, over all rows
    flat = logits.view(-1, V)
    return F.cross_entropy(flat, labels.view(-1)) + 0.1 * torch.square(torch.logsumexp(flat, dim=-1)).mean()


def olmo(logits: Tensor, labels: Tensor) -> Tensor:
    # OLMo: over the rows that count, averaged over all
    flat, targets = logits[..., :-1, :].contiguous().view(-1, V), labels[..., 1:].contiguous().view(-1)
    loss = F.cross_entropy(flat, targets, ignore_index=IGNORED)
    squares = flat.logsumexp(-1).pow(2)
    return loss + 0.1 * (squares * (targets != IGNORED)).mean()


def olmo_core(logits: Tensor, labels: Tensor) -> Tensor:
    # OLMo-core: sums by the number of items
    flat, targets = logits.float().view(-1, V), labels.view(-1)
    loss = F.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum")
    squares = flat.logsumexp(-1).pow(2)
    return loss / 77 + 0.1 * (squares * (targets != IGNORED)).sum() / 77


def z_loss_of_unviewed_logits(logits: Tensor, labels: Tensor) -> Tensor:
    squares = logits[:, :-1].logsumexp(-1).square()
    counts = (labels[:, 1:] > 5).to(squares.dtype)
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1), reduction="none")
    kept = counts.view(-1)
    return (loss * kept).sum() / kept.sum() + 0.1 * (squares * counts).sum() / counts.sum()


def capped_with_smoothing_and_z_loss(logits: Tensor, labels: Tensor) -> Tensor:
    flat = (3.0 * (logits / 3.0).tanh()).view(-1, V)
    return 0.5 * F.cross_entropy(flat, labels.view(-1), label_smoothing=0.1) + 0.1 * flat.logsumexp(-1).square().mean()


def masked_rows(logits: Tensor, labels: Tensor) -> Tensor:
    # LLaVA, nanochat and many others
    losses = F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="none")
    mask = (labels.view(-1) > 5).to(losses.dtype)
    return (losses * mask).sum() / mask.sum()


def masked_in_shape(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    mask = labels > 5
    return (losses * mask[:, 1:]).sum() / mask[:, 1:].sum().clamp(min=1)


def rows_set_to_zero(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="none").view(labels.shape)
    return losses.masked_fill(labels < 5, 0.0).sum() / 77


def infinite_losses_set_to_zero(logits: Tensor, labels: Tensor) -> Tensor:
    impossible = torch.zeros(V, dtype=logits.dtype).index_fill(0, torch.tensor([3]), float("-inf"))
    flat, targets = (logits + impossible).view(-1, V), labels.view(-1)
    losses = F.cross_entropy(flat, targets, reduction="none")
    squares = flat.logsumexp(-1).square().masked_fill(targets > 30, 0.0)
    return losses.masked_fill(targets == 3, 0.0).sum() / 77 + 0.1 * squares.mean()


def weighted_by_sequence(logits: Tensor, labels: Tensor) -> Tensor:
    # each sequence counts as much as every other: weights first, one sum
    losses = F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="none").view(labels.shape)
    mask = (labels > 5).to(losses.dtype)
    return (losses * mask / mask.sum(1, keepdim=True)).sum() / len(labels)


WRITTEN: list[Loss] = [
    capped_with_smoothing_and_z_loss,
    cohere,
    gemma2,
    granite,
    infinite_losses_set_to_zero,
    masked_in_shape,
    modded_nanogpt,
    masked_rows,
    olmo,
    olmo_core,
    open_lm,
    rows_set_to_zero,
    softened_and_biased,
    weighted_by_sequence,
    z_loss_of_unviewed_logits,
    bart,
    gpt2,
    llama,
    llama_per_items,
    nanogpt,
    sliced_and_widened,
    classes_second,
    classes_second_and_sliced,
    after_a_prefix,
    every_second,
    last_position,
    positions_first,
    log_softmax_and_nll,
    rows_averaged,
    rows_summed_in_shape,
    smoothed_and_shifted,
    weighted_and_shifted,
]


def losses_and_gradients(step: Loss, model: Model, tokens: Tensor, labels: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = step(tokens, labels)
    (3 * loss).backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def both(loss: Loss, model: Model | None = None) -> tuple[list[Tensor], list[Tensor], list[str]]:
    """By the prepared step and by PyTorch, and the operators of the former."""
    torch.manual_seed(0)
    model = model or Model()
    tokens, labels = torch.randint(V, (2, 3, 200)).unbind()
    labels[0, ::7] = IGNORED
    compiled, operators = prepared_step(lambda tokens, labels: loss(model(tokens), labels))
    got = losses_and_gradients(compiled, model, tokens, labels)
    want = losses_and_gradients(lambda tokens, labels: loss(model(tokens), labels), model, tokens, labels)
    return got, want, operators


@pytest.mark.slow
@pytest.mark.parametrize("loss", WRITTEN, ids=lambda loss: loss.__name__)
def test_the_loss_is_found_and_has_the_gradients_of_pytorch(loss: Loss) -> None:
    got, want, operators = both(loss)
    assert sum("linear_cross_entropy" in o for o in operators) == 1
    assert not any("log_softmax" in o or "nll_loss" in o for o in operators)
    # Those that widen to float32 lose digits there, in another order.
    tolerance = 1e-5 if loss in (llama, cohere, granite, olmo_core, sliced_and_widened) else 1e-11
    for have, expected in zip(got, want, strict=True):
        torch.testing.assert_close(have, expected, rtol=tolerance, atol=tolerance)


class Tempered(Model):
    """Logits scaled by a number that is learned."""

    def __init__(self, how: str, *, biased: bool, frozen: bool) -> None:
        super().__init__()
        self.how = how
        self.head = nn.Linear(6, V, bias=biased, dtype=torch.float64).requires_grad_(not frozen)
        shape = (1,) if "row" in how else ()
        self.temperature = nn.Parameter(torch.full(shape, 0.7, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        logits, t = super().forward(tokens), self.temperature
        scaled = {
            "divided": lambda: logits / t,
            "multiplied": lambda: t * logits,
            "exponential": lambda: logits * t.exp().clamp(max=100.0),
            "by one row, then capped": lambda: 3 * (logits / t / 3).tanh(),
            "not learned": lambda: logits * t.detach(),
        }
        return scaled[self.how]()


@pytest.mark.parametrize(
    ("how", "biased", "frozen"),
    [
        *(
            ("divided", True, False),
            ("divided", False, True),
            ("multiplied", True, True),
            ("exponential", False, False),
        ),
        *(("by one row, then capped", True, False), ("not learned", False, False)),
    ],
)
def test_a_learned_temperature_has_the_gradient_of_pytorch(how: str, biased: bool, frozen: bool) -> None:
    got, want, operators = both(gpt2 if biased else open_lm, Tempered(how, biased=biased, frozen=frozen))
    assert sum("linear_cross_entropy" in o for o in operators) == 1
    assert not any("log_softmax" in o or "logsumexp" in o for o in operators)
    for have, expected in zip(got, want, strict=True):
        torch.testing.assert_close(have, expected, rtol=1e-11, atol=1e-11)


def expect_it_is_found_and_as_precise(loss: Loss, model: Model) -> None:
    """Under autocast: the operator is there, and gradients are as near to those of float32 as PyTorch's."""
    tokens, labels = torch.randint(V, (2, 3, 200)).unbind()

    def step(tokens: Tensor, labels: Tensor) -> Tensor:
        return loss(model(tokens), labels)

    def gradients(step: Loss) -> Tensor:
        return torch.cat([t.flatten() for t in losses_and_gradients(step, model, tokens, labels)])

    truth = gradients(step)
    with torch.autocast("cpu", torch.bfloat16):
        compiled, operators = prepared_step(step)
        got, other = gradients(compiled), gradients(step)
    assert sum("linear_cross_entropy" in o for o in operators) == 1
    assert not any("log_softmax" in o or "nll_loss" in o for o in operators)
    assert (got - truth).norm() <= 1.2 * (other - truth).norm() + 1e-3 * truth.norm()


@pytest.mark.parametrize("loss", [gemma2, masked_rows, olmo, open_lm], ids=lambda loss: loss.__name__)
def test_under_autocast_it_is_found_and_as_precise_as_pytorch(loss: Loss) -> None:
    model = Tempered("divided", biased=True, frozen=False) if loss is open_lm else Model()
    expect_it_is_found_and_as_precise(loss, model.float())


def cross_entropy_on_cuda(
    scores: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """F.cross_entropy as CUDA's autocast runs it: log-probabilities in the scores' format, all that follows in float32.

    PyTorch's own asks for that format, which autocast then leaves alone (``cross_entropy_loss`` in ATen's Loss.cpp).
    """
    dim = min(1, scores.dim() - 1)
    log_probabilities = F.log_softmax(scores, dim, dtype=scores.dtype)
    widened = log_probabilities.float()
    loss = F.nll_loss(widened, targets, weight, ignore_index=ignore_index, reduction=reduction)
    if not label_smoothing:
        return loss
    ignored = targets == ignore_index
    smooth = (-log_probabilities.sum(dim, dtype=torch.float32)).masked_fill(ignored, 0)
    smooth = smooth.sum() / (~ignored).sum() if reduction == "mean" else smooth.sum()
    times = torch.ops.aten.mul.Scalar  # a number, as in C++; from Python it would be a tensor
    return times(loss, 1 - label_smoothing) + times(smooth, label_smoothing / scores.shape[dim])


AS_ON_CUDA = [
    after_a_prefix,
    bart,
    classes_second_and_sliced,
    masked_rows,
    nanogpt,
    olmo,
    rows_averaged,
    smoothed_and_shifted,
]


@pytest.mark.slow
@pytest.mark.parametrize("loss", AS_ON_CUDA, ids=lambda loss: loss.__name__)
def test_under_the_autocast_of_cuda_it_is_found(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model().float()
    model.head = nn.Linear(6, V, bias=loss is not bart)  # which brings its own
    monkeypatch.setattr(F, "cross_entropy", cross_entropy_on_cuda)
    expect_it_is_found_and_as_precise(loss, model)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [cohere, gemma2, masked_rows, olmo], ids=lambda loss: loss.__name__)
def test_a_captured_step_never_holds_all_the_logits(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.V", 400)
    model = Model()
    tokens, labels = torch.randint(V, (2, 3, 1000)).unbind()
    problem = capture(model, (tokens, labels), loss, hardware="h200", progress=False)
    logits_bytes = tokens.numel() * V * torch.float64.itemsize
    assert plain.peak_bytes(problem) - problem.forward[0].fixed_bytes < logits_bytes / 2


def read_twice(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1)) + logits[:, -1].sum()


def fewer_classes(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[..., :30].reshape(-1, 30), labels.clamp(max=29).reshape(-1))


def a_bias_for_each_row(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy((logits + torch.arange(200.0, dtype=logits.dtype)[:, None]).view(-1, V), labels.view(-1))


def two_biases(logits: Tensor, labels: Tensor) -> Tensor:
    row = torch.linspace(-1, 1, V, dtype=logits.dtype)
    return F.cross_entropy((logits + row + row.square()).view(-1, V), labels.view(-1))


def z_loss_of_unscaled_logits(logits: Tensor, labels: Tensor) -> Tensor:
    loss = F.cross_entropy((0.5 * logits).view(-1, V), labels.view(-1))
    return loss + 1e-4 * logits.logsumexp(-1).square().mean()


def z_loss_of_a_sigmoid(logits: Tensor, labels: Tensor) -> Tensor:
    # Another normalizer than the hyperbolic tangent's, by a number for each row.
    flat = 30 * torch.sigmoid(logits / 7.5).view(-1, V)
    return F.cross_entropy(flat, labels.view(-1)) + 1e-4 * flat.logsumexp(-1).square().mean()


def z_loss_without_a_square(logits: Tensor, labels: Tensor) -> Tensor:
    flat = logits.view(-1, V)
    return F.cross_entropy(flat, labels.view(-1)) + 1e-4 * flat.logsumexp(-1).abs().mean()


def z_loss_of_another_slope(logits: Tensor, labels: Tensor) -> Tensor:
    flat = logits.view(-1, V)
    return F.cross_entropy(flat, labels.view(-1)) * (1 + flat.logsumexp(-1).square().mean())


def scaled_by_themselves(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy((logits / logits[0, 0].detach().abs().mean()).view(-1, V), labels.view(-1))


def scaled_by_row(logits: Tensor, labels: Tensor) -> Tensor:
    scale = torch.linspace(1, 2, 200, dtype=logits.dtype)[:, None]
    return F.cross_entropy((logits * scale).view(-1, V), labels.view(-1))


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="none")
    return ((1 - (-losses).exp()).square() * losses).mean()


def masked_by_the_losses(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="none")
    return (losses * (losses.detach() > 1.0)).sum()


def mean_of_sequences(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    mask = (labels > 5).to(losses.dtype)
    return ((losses * mask).sum(1) / mask.sum(1)).mean()


def a_sum_in_a_row_of_its_own(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, V), labels.view(-1), reduction="none").sum().view(1)


def two_caps(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.tanh().tanh().view(-1, V), labels.view(-1))


def over_positions(logits: Tensor, labels: Tensor) -> Tensor:
    # A view that takes positions for classes: [3, 200, 40] as [3, 40, 200].
    return F.cross_entropy(logits.reshape(3, V, 200).transpose(1, 2).reshape(-1, V), labels.view(-1))


@pytest.mark.parametrize(
    "loss",
    [
        *(read_twice, fewer_classes, a_bias_for_each_row, two_biases, two_caps, over_positions),
        *(scaled_by_themselves, scaled_by_row, z_loss_of_a_sigmoid),
        *(z_loss_of_unscaled_logits, z_loss_without_a_square, z_loss_of_another_slope),
        *(focal, masked_by_the_losses, mean_of_sequences, a_sum_in_a_row_of_its_own),
    ],
    ids=lambda loss: loss.__name__,
)
def test_what_is_no_plain_loss_of_rows_is_left_alone(loss: Loss) -> None:
    got, want, operators = both(loss)
    assert not any("linear_cross_entropy" in o for o in operators)
    for have, expected in zip(got, want, strict=True):
        torch.testing.assert_close(have, expected, rtol=1e-11, atol=1e-11)


SMALL = {
    "vocab_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
}
LIBRARY_MODELS = {
    "Llama": ("LlamaForCausalLM", SMALL),
    "Qwen2": ("Qwen2ForCausalLM", {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "Gemma2": ("Gemma2ForCausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "Cohere": ("CohereForCausalLM", {**SMALL, "num_key_value_heads": 2}),
    "Granite": ("GraniteForCausalLM", {**SMALL, "num_key_value_heads": 2, "logits_scaling": 8.0}),
    "Bert": ("BertForMaskedLM", SMALL),
    "T5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 512, "d_model": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    ),
    "Bart": (
        "BartForConditionalGeneration",
        {"vocab_size": 512, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", LIBRARY_MODELS)
def test_the_loss_that_a_model_of_transformers_returns_is_found(family: str) -> None:
    name, fields = LIBRARY_MODELS[family]
    library = imported(f"transformers.models.{family.lower()}", needs="transformers")
    make, config = getattr(library, name), getattr(library, f"{family}Config")
    torch.manual_seed(0)
    model = make(config(**fields)).eval()
    tokens = torch.randint(2, 512, (2, 300))
    compiled, operators = prepared_step(lambda tokens, labels: model(input_ids=tokens, labels=labels).loss)
    losses_and_gradients(compiled, model, tokens, tokens.clone())
    assert sum("linear_cross_entropy" in o for o in operators) == 1
    assert not any("nll_loss" in o for o in operators)
