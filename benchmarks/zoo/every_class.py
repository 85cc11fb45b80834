"""Every model class that transformers' automatic classes know and one of each of timm's modules, made small.

Nobody chose them: names are the libraries' own lists, and sizes are set by the names that configurations have in
common. What cannot be made small so, or does not run then, is left out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.entries import Example, undropped

MOST_PARAMETERS = 60_000_000
_CLASSES = 10
_SMALL = re.compile(r"(atto|femto|pico|nano|test|xxtiny|xx_small|tiny|_t\b|xxs|xs|_s\b|small|b0|_0|lite)")
_IMAGES = "IMAGE_CLASSIFICATION"
_TASKS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", _IMAGES)
_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_INNER = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_hidden_size", "n_inner")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_TOKENS = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_BASE = {
    **dict.fromkeys(_DEPTHS, 2),
    "num_decoder_layers": 2,
    **dict.fromkeys(_EXPERTS, 4),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "max_position_embeddings": 256,
    **_TOKENS,
}
_NARROW = {**_BASE, **dict.fromkeys(_WIDTHS, 64), **dict.fromkeys(_INNER, 128), **dict.fromkeys(_HEADS, 4)}
# Tried one after another: what is set has to fit together, and only the library knows what does.
_SETTINGS: tuple[Mapping[str, int], ...] = (
    {**_NARROW, "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16},
    {**_NARROW, "num_key_value_heads": 4},
    _BASE,
)


def names() -> Iterator[str]:
    """List all models, as ``timm/NAME`` and ``transformers/CLASS``."""
    import timm.models

    for module in timm.models.list_modules():
        if found := timm.models.list_models(module=module):
            yield f"timm/{min(found, key=lambda name: (_SMALL.search(name) is None, len(name)))}"
    for name in dict.fromkeys(made for _, _, made in _listed()):
        yield f"transformers/{name}"


def _listed() -> Iterator[tuple[str, str, str]]:
    """Yield (task, kind of configuration, class) for all that transformers' automatic classes know."""
    from transformers.models.auto import modeling_auto

    for task in _TASKS:
        for kind, made in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            yield from ((task, kind, name) for name in ((made,) if isinstance(made, str) else made))


def makers(name: str) -> Iterator[Callable[[], Example]]:
    """Yield functions that make a model, batch and loss, without dropout; each makes it small in another way."""
    library, _, model = name.partition("/")
    if library == "timm":
        yield functools.partial(_of_timm, model)
        return
    for setting in _SETTINGS:
        yield functools.partial(_of_transformers, model, setting)


def _of_timm(name: str) -> Example:
    import timm

    make = functools.partial(timm.create_model, name, pretrained=False, num_classes=_CLASSES)
    _expect_small(make)
    model = make().train()
    for module in model.modules():
        for attribute in ("p", "drop_prob", "drop_rate"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    channels, height, width = model.default_cfg["input_size"]
    images, labels = torch.randn(4, channels, height, width), torch.randint(_CLASSES, (4,))
    return model, (images, labels), nn.CrossEntropyLoss()


def _of_transformers(name: str, setting: Mapping[str, int]) -> Example:
    import transformers
    from transformers.models.auto import configuration_auto

    task, kind = next((task, kind) for task, kind, made in _listed() if made == name)
    configuration = configuration_auto.CONFIG_MAPPING[kind]()
    for key, value in setting.items():
        if isinstance(getattr(configuration, key, ""), int | None):
            with contextlib.suppress(Exception):  # some are computed from others, or checked against them
                setattr(configuration, key, value)
    if isinstance(layers := getattr(configuration, "layer_types", None), list):
        with contextlib.suppress(AttributeError):
            configuration.layer_types = layers[:2]
    undropped(configuration).use_cache = False
    made = getattr(transformers, name)
    _expect_small(lambda: made(copy.deepcopy(configuration)))
    return made(configuration).float().train(), _batch(task, configuration), None


def _expect_small(make: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        size = sum(p.numel() for p in make().parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters")


def _batch(task: str, configuration: Any) -> dict[str, torch.Tensor]:
    if task == _IMAGES:
        size = getattr(configuration, "image_size", 224)
        size = size if isinstance(size, int) else 224
        images = torch.randn(2, getattr(configuration, "num_channels", 3), size, size)
        return {"pixel_values": images, "labels": torch.randint(2, (2,))}
    tokens = torch.randint(3, 500, (4, 64))
    return {"input_ids": tokens, "labels": tokens.clone()}
