"""The example models are the published ones; each trains, is captured, and gives the same gradients under a plan."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch

from loadmaster.executor import apply, capture
from loadmaster.models.memory import plain
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.planner import plan

NAMES = ("resnet50", "gpt", "vgg16", "unet", "unet3d", "mobilenet_v2", "googlenet", "bert", "llama")
PUBLISHED = {
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "unet": 31_037_698,
    "unet3d": 4_081_267,
    "mobilenet_v2": 3_504_872,
    "googlenet": 6_624_904,
    "bert": 335_172_410,  # BERT-large without its two segment embeddings and its pooler
    "llama": 1_235_814_400,  # Llama-3.2-1B
}


def example(name: str):
    return importlib.import_module(f"examples.{name}")


def shallow(name: str):
    """An example with each sort of block that it has, and no more of them: every one is traced twice."""
    module = example(name)
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    if name == "gpt":
        return module.gpt(batch=2, length=32, vocabulary=256, layers=2, width=64, heads=4, dropout=0.1)
    if name == "unet":
        image, mask = images[:2], torch.randint(2, (2, 32, 32))
        return module.UNet(width=8, depth=2), (image, mask), torch.nn.CrossEntropyLoss()
    if name == "unet3d":
        volumes = torch.randn(2, 1, 8, 16, 16)
        return module.UNet3D(width=8, depth=2), (volumes, volumes.gt(0).float()), torch.nn.BCEWithLogitsLoss()
    make = {
        "resnet50": lambda: module.ResNet((2, 2), width=16, classes=10),
        "vgg16": lambda: module.VGG(((8, 2), (16, 1)), hidden=64, classes=10),
        "mobilenet_v2": lambda: module.MobileNetV2(module.STAGES[:2], head=64, classes=10),
        "googlenet": lambda: module.GoogleNet((module.STAGES[0][:1], module.STAGES[1][:1]), classes=10),
    }
    return (make[name](), (images, labels), torch.nn.CrossEntropyLoss()) if name in make else module.small()


def exact(name: str):
    """A shallow example whose gradients can be compared exactly: float64, nothing dropped."""
    torch.manual_seed(0)
    model, inputs, loss = shallow(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model.double(), tuple(t.double() if t.is_floating_point() else t for t in inputs), loss


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "resnet50" else name for name in NAMES]
)
def test_small_factories_train(name):
    torch.manual_seed(0)
    model, inputs, loss = example(name).small()
    value = loss(model(*inputs[:-1]), inputs[-1])
    value.backward()
    assert value.shape == ()
    assert value.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    with torch.device("meta"):
        model, _, _ = example(name).full()
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]


def test_published_parameter_count_of_gpt2_medium():
    with torch.device("meta"):
        gpt = example("gpt").GPT(vocabulary=50_257, context=1024, layers=24, width=1024, heads=16)
    assert sum(p.numel() for p in gpt.parameters()) == 354_823_168


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradients_under_a_plan_are_those_of_plain_pytorch(name):
    model, inputs, loss = exact(name)
    twin = copy.deepcopy(model)
    problem = capture(model, inputs, loss, hardware="h200", backend="eager", name=name)
    least, most = minimum_budget(problem).budget_bytes, plain.peak_bytes(problem)
    # Half-way: what the plain step keeps does not fit, and a plan is found in a second or two.
    chosen = plan(problem, budget_bytes=(least + most) // 2, gap=0.5, time_limit_s=30)
    assert chosen.schedule is not None
    assert chosen.check["peak_bytes"] <= (least + most) // 2 < most
    value = apply(chosen, model, loss, backend="eager")(*inputs)
    value.backward()
    expected = loss(twin(*inputs[:-1]), inputs[-1])
    expected.backward()
    # The language models take their loss in float32.
    rtol = 1e-5 if name in ("gpt", "bert", "llama") else 1e-9
    torch.testing.assert_close(value.double(), expected.double(), rtol=rtol, atol=0)
    for (parameter_name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        largest = float(q.grad.abs().max())
        assert float((p.grad - q.grad).abs().max()) <= rtol * largest + 1e-12, parameter_name


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_no_token_is_looked_at_early(name):
    torch.manual_seed(0)
    model, (tokens, _), _ = exact(name)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_rotary_attention_depends_on_distances_alone():
    llama = example("llama")
    torch.manual_seed(0)
    model = llama.Llama(vocabulary=50, context=20, layers=1, width=16, heads=2, groups=1, hidden=8).double()
    query, key = torch.randn(2, 8, dtype=torch.float64)
    at = lambda x, i: llama.rotated(x, model.cosine[i], model.sine[i])  # noqa: E731
    torch.testing.assert_close(at(query, 3) @ at(key, 7), at(query, 12) @ at(key, 16))
    assert not torch.isclose(at(query, 3) @ at(key, 7), at(query, 3) @ at(key, 8))


def test_masked_tokens_alone_count():
    bert = example("bert")
    scores, targets = torch.randn(2, 3, 5), torch.full((2, 3), bert.IGNORED)
    targets[1, 2] = 4
    expected = scores[1, 2].logsumexp(0) - scores[1, 2, 4]
    torch.testing.assert_close(bert.masked_token_loss(scores, targets), expected)
