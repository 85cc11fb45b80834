"""Models of real repositories by configuration, with random weights: torchvision's and transformers', and two of ours.

Dropout is off, so that gradients can be held against plain PyTorch's. The loss of transformers' GPT-2 is computed
here: its own logs a warning, at which torch.compile breaks the graph. Small versions are for trials on a CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.cases import CASES, Case, Example
from examples import gpt, unet, unet3d


class Scores(nn.Module):
    """A model that returns its scores alone, whatever else it has to say while it trains."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores alone, first of the model's outputs."""
        found = self.model(images)
        return found if isinstance(found, Tensor) else found[0]


class NextTokenScores(nn.Module):
    """A language model that returns the scores of the next tokens and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next tokens."""
        return self.model(input_ids=tokens).logits


class LossOf(nn.Module):
    """A language model that computes its own loss from ``labels``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss that the model computes."""
        return self.model(input_ids=tokens, labels=labels).loss


def vision(name: str, batch: int, size: int, **options: Any) -> Example:
    """Build a classifier of torchvision with random images."""
    from torchvision import models

    model = Scores(getattr(models, name)(weights=None, **options))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, (torch.randn(batch, 3, size, size), torch.randint(10, (batch,))), nn.CrossEntropyLoss()


def language(kind: str, configuration: dict[str, Any], batch: int, length: int) -> Example:
    """Build a model of transformers with random tokens; it returns its loss."""
    import transformers

    classes = {
        "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
        "bert": ("BertConfig", "BertForMaskedLM"),
        "llama": ("LlamaConfig", "LlamaForCausalLM"),
        "t5": ("T5Config", "T5ForConditionalGeneration"),
    }
    config, model = (getattr(transformers, name) for name in classes[kind])
    made = config(**configuration)
    made.use_cache = False
    for name in vars(made):
        if "dropout" in name or name.endswith("_pdrop"):
            setattr(made, name, 0.0)
    tokens, labels = torch.randint(2, made.vocab_size, (2, batch, length))
    if kind == "gpt2":
        return NextTokenScores(model(made)).train(), (tokens, labels), gpt.next_token_loss
    return LossOf(model(made)).train(), (tokens, labels), None


def _vision(name: str, batch: int, small_size: int = 64, **options: Any) -> Case:
    full = functools.partial(vision, name, batch, 224, **options)
    small = functools.partial(vision, name, 8, small_size, **{**options, "num_classes": 10})
    return Case(full, small, False)


def _language(kind: str, batch: int, length: int, small: dict[str, Any], **options: Any) -> Case:
    return Case(
        functools.partial(language, kind, options, batch, length),
        functools.partial(language, kind, {**options, **small}, 16, 64),
        True,
    )


_NARROW = {"vocab_size": 256}
_GPT2 = {"n_layer": 2, "n_embd": 64, "n_head": 4, **_NARROW}
_BERT = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, **_NARROW}
_LLAMA = {**_BERT, "num_key_value_heads": 2}
_T5 = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128, "d_kv": 16, **_NARROW}

ZOO = {
    "torchvision resnet50": _vision("resnet50", 64),
    "torchvision resnet101": _vision("resnet101", 64),
    "torchvision resnet152": _vision("resnet152", 64),
    "torchvision vgg16": _vision("vgg16", 64, 32),
    "torchvision googlenet": _vision("googlenet", 128, aux_logits=False, init_weights=False),
    "torchvision mobilenet_v2": _vision("mobilenet_v2", 96),
    "torchvision vit_b_16": _vision("vit_b_16", 64, 224),
    "transformers GPT-2": _language("gpt2", 8, 1024, _GPT2),
    "transformers BERT": _language("bert", 16, 512, _BERT),
    "transformers Llama": _language(
        "llama",
        4,
        1024,
        _LLAMA,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
    ),
    "transformers T5": _language("t5", 16, 512, _T5, decoder_start_token_id=0),
    "U-Net": Case(functools.partial(unet.unet, 4, 416, 416), unet.small, False),
    "3D-UNet": Case(functools.partial(unet3d.unet3d, 8, (32, 96, 96)), unet3d.small, False),
}


def case(name: str) -> Case:
    """Find a case of the figures, or a model of the zoo, by name."""
    return CASES[name] if name in CASES else ZOO[name]
