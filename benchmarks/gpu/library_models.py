"""Models of timm, torchvision and transformers as their libraries write them, for ``benchmarks.memory_knob``.

    python -m benchmarks.memory_knob --out DIR --cases benchmarks.gpu.library_models:convnext_base ...

None of them is in the repository's other benchmarks: they are what users bring. Dropout is off, so that gradients can
be held against each other. Each factory returns model, batch and loss; models of transformers are given ``labels``, as
their documentation has it, and compute their loss themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.entries import undropped

Made = tuple[nn.Module, Any, Any]


def _images(model: nn.Module, batch: int) -> Made:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, (torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))), nn.CrossEntropyLoss()


def _timm(name: str, batch: int, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return _images(timm.create_model(name, pretrained=False, drop_rate=0.0, **options), batch)

    return make


def _torchvision(name: str, batch: int) -> Callable[[], Made]:
    def make() -> Made:
        from torchvision import models

        return _images(getattr(models, name)(weights=None), batch)

    return make


def _transformers(config: str, model: str, batch: int, length: int, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        made = undropped(getattr(transformers, config)(**options))
        made.use_cache = False
        tokens = torch.randint(2, made.vocab_size, (batch, length))
        return getattr(transformers, model)(made).train(), {"input_ids": tokens, "labels": tokens.clone()}, None

    return make


convnext_base = _timm("convnext_base", 96)
swin_base = _timm("swin_base_patch4_window7_224", 96, drop_path_rate=0.0)
regnety_032 = _timm("regnety_032", 128)
vit_base = _timm("vit_base_patch16_224", 128)
mixer_b16 = _timm("mixer_b16_224", 128)
densenet121 = _timm("densenet121", 96)
maxvit_tiny = _timm("maxvit_tiny_tf_224", 64)
efficientnet_v2_s = _torchvision("efficientnet_v2_s", 96)
resnext50 = _torchvision("resnext50_32x4d", 128)
qwen2_half_b = _transformers(
    *("Qwen2Config", "Qwen2ForCausalLM", 8, 1024),
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
)
roberta_base = _transformers(
    *("RobertaConfig", "RobertaForMaskedLM", 32, 512), vocab_size=50_265, max_position_embeddings=514
)
bart_large = _transformers("BartConfig", "BartForConditionalGeneration", 16, 512)
gpt_neox = _transformers(
    *("GPTNeoXConfig", "GPTNeoXForCausalLM", 8, 1024),
    hidden_size=1024,
    intermediate_size=4096,
    num_hidden_layers=16,
    num_attention_heads=16,
)
mixtral = _transformers(
    *("MixtralConfig", "MixtralForCausalLM", 8, 512),
    hidden_size=768,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
    num_local_experts=4,
)
# Without its own kernels transformers' scan is a loop over positions, of which a compiler makes a graph of each.
mamba = _transformers("MambaConfig", "MambaForCausalLM", 64, 32, hidden_size=768, num_hidden_layers=6)
deberta_v2 = _transformers(
    *("DebertaV2Config", "DebertaV2ForMaskedLM", 16, 512),
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
)
# What came after: none of these was tried while anything was built.
coatnet_0 = _timm("coatnet_0_rw_224", 96, drop_path_rate=0.0)
xcit_small = _timm("xcit_small_12_p16_224", 96, drop_path_rate=0.0)
poolformer_s24 = _timm("poolformer_s24", 96, drop_path_rate=0.0)
mobilenetv4_m = _timm("mobilenetv4_conv_medium", 192, drop_path_rate=0.0)
hiera_base = _timm("hiera_base_224", 64, drop_path_rate=0.0)
opt_350m = _transformers(
    *("OPTConfig", "OPTForCausalLM", 8, 1024),
    hidden_size=1024,
    ffn_dim=4096,
    num_hidden_layers=24,
    num_attention_heads=16,
    word_embed_proj_dim=512,
    do_layer_norm_before=False,
)
modernbert_base = _transformers("ModernBertConfig", "ModernBertForMaskedLM", 16, 1024)
gemma2_half_b = _transformers(
    *("Gemma2Config", "Gemma2ForCausalLM", 4, 1024),
    hidden_size=896,
    intermediate_size=3584,
    num_hidden_layers=12,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=128,
)
electra_base = _transformers(
    *("ElectraConfig", "ElectraForMaskedLM", 32, 512),
    embedding_size=768,
    hidden_size=768,
    num_attention_heads=12,
    intermediate_size=3072,
)


def whisper_small() -> Made:
    """Whisper, small: speech to text, spectrograms of 30 s."""
    import transformers

    sizes = dict.fromkeys(
        ("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 12
    )
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 3072)
    config = undropped(transformers.WhisperConfig(d_model=768, use_cache=False, **sizes))
    labels = torch.randint(2, config.vocab_size, (8, 256))
    batch = {"input_features": torch.randn(8, config.num_mel_bins, 3000), "labels": labels}
    return transformers.WhisperForConditionalGeneration(config).train(), batch, None


def segformer_b2() -> Made:
    """SegFormer-B2: a class for each pixel."""
    import transformers

    sizes = {"depths": [3, 4, 6, 3], "hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 768}
    config = undropped(transformers.SegformerConfig(num_labels=150, **sizes))
    batch = {"pixel_values": torch.randn(16, 3, 512, 512), "labels": torch.randint(150, (16, 512, 512))}
    return transformers.SegformerForSemanticSegmentation(config).train(), batch, None


def lora_qwen2() -> Made:
    """Qwen2, frozen, with low-rank weights (LoRA) next to its projections."""
    import peft

    model, batch, _ = qwen2_half_b()
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config), batch, None


def segresnet_3d() -> Made:
    """SegResNet in 3D: a class for each voxel; both are MONAI's, model and loss."""
    from monai import losses, networks

    model = networks.nets.SegResNet(init_filters=32, in_channels=4, out_channels=3)
    batch = torch.randn(2, 4, 128, 128, 128), torch.randint(3, (2, 1, 128, 128, 128))
    return model, batch, losses.DiceCELoss(to_onehot_y=True, softmax=True)


class HeatEquation(nn.Module):
    """Network that solves u_t = u_xx: its loss reads derivatives that it takes itself."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        hidden = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())]
        self.network = nn.Sequential(nn.Linear(2, width), nn.Tanh(), *hidden, nn.Linear(width, 1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Compute the mean square of u_t - u_xx at points (x, t)."""
        x, t = x.requires_grad_(), t.requires_grad_()
        u = self.network(torch.cat([x, t], dim=1))
        u_x, u_t = torch.autograd.grad(u.sum(), [x, t], create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return (u_t - u_xx).square().mean()


def heat_equation() -> Made:
    """Physics-informed network that solves the heat equation."""
    points = 1 << 17
    return HeatEquation(512, 8), (torch.rand(points, 1), torch.rand(points, 1)), None
