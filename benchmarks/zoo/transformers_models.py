"""Models of transformers: a batch by keyword, as tokenizers and collators make it, and the loss inside the output."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from benchmarks.zoo.entries import Example, entries, undropped

BATCH, LENGTH, WORDS = 8, 64, 512
WIDTH: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 64, "num_attention_heads": 4}
ENCODER = {**WIDTH, "num_hidden_layers": 3, "intermediate_size": 256}
DECODER = {**ENCODER, "num_key_value_heads": 2, "pad_token_id": 0}
VISION = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}


def tokens() -> Tensor:
    """Draw random tokens, none of them special."""
    return torch.randint(5, WORDS, (BATCH, LENGTH))


def text(**more: Any) -> hf.BatchEncoding:
    """Make a batch as tokenizers return it, the second half of its rows padded."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[BATCH // 2 :, LENGTH - 8 :] = 0
    return hf.BatchEncoding({"input_ids": tokens(), "attention_mask": mask, **more})


def images(size: int = 64) -> Tensor:
    """Draw random images [batch, 3, size, size]."""
    return torch.randn(BATCH, 3, size, size)


def bert() -> Example:
    """BERT for sequence classification."""
    model = hf.BertForSequenceClassification(undropped(hf.BertConfig(**ENCODER, num_labels=3)))
    return model, text(labels=torch.randint(3, (BATCH,))), None


def roberta() -> Example:
    """RoBERTa for masked tokens."""
    model = hf.RobertaForMaskedLM(undropped(hf.RobertaConfig(**ENCODER)))
    return model, text(labels=tokens()), None


def distilbert() -> Example:
    """DistilBERT for questions answered by the span between two positions."""
    config = hf.DistilBertConfig(vocab_size=WORDS, dim=64, n_heads=4, n_layers=3, hidden_dim=256)
    spans = torch.randint(LENGTH, (2, BATCH))
    batch = text(start_positions=spans[0], end_positions=spans[1])
    return hf.DistilBertForQuestionAnswering(undropped(config)), batch, None


def deberta() -> Example:
    """DeBERTa-v2 for labels of tokens."""
    config = hf.DebertaV2Config(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], num_labels=5)
    return hf.DebertaV2ForTokenClassification(undropped(config)), text(labels=torch.randint(5, (BATCH, LENGTH))), None


def modernbert() -> Example:
    """ModernBERT for masked tokens."""
    config = hf.ModernBertConfig(**ENCODER, pad_token_id=0, local_attention=16)
    return hf.ModernBertForMaskedLM(undropped(config)), text(labels=tokens()), None


def _causal(model: type, config: Any) -> Example:
    batch = text()
    return model(undropped(config)), hf.BatchEncoding({**batch, "labels": batch["input_ids"].clone()}), None


def gpt2() -> Example:
    """GPT-2 for next tokens."""
    return _causal(hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=WORDS, n_embd=64, n_head=4, n_layer=3, n_positions=128))


def opt() -> Example:
    """OPT for next tokens."""
    sizes = {"num_hidden_layers": 3, "ffn_dim": 256, "word_embed_proj_dim": 64, "max_position_embeddings": 128}
    config = hf.OPTConfig(**WIDTH, **sizes)
    return _causal(hf.OPTForCausalLM, config)


def llama() -> Example:
    """Llama for next tokens."""
    return _causal(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER))


def mistral() -> Example:
    """Mistral for next tokens; attention over a window."""
    return _causal(hf.MistralForCausalLM, hf.MistralConfig(**DECODER, sliding_window=16))


def gemma() -> Example:
    """Gemma 2 for next tokens; windows and whole attention in turn."""
    return _causal(hf.Gemma2ForCausalLM, hf.Gemma2Config(**DECODER, head_dim=16, sliding_window=16))


def mixtral() -> Example:
    """Mixtral for next tokens; two of four experts for each."""
    return _causal(hf.MixtralForCausalLM, hf.MixtralConfig(**DECODER, num_local_experts=4))


def olmoe() -> Example:
    """OLMoE for next tokens; two of eight small experts for each."""
    config = hf.OlmoeConfig(**{**DECODER, "intermediate_size": 64}, num_experts=8, num_experts_per_tok=2)
    return _causal(hf.OlmoeForCausalLM, config)


def t5() -> Example:
    """T5 for text to text."""
    config = hf.T5Config(
        vocab_size=WORDS, d_model=64, d_kv=16, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return hf.T5ForConditionalGeneration(undropped(config)), text(labels=tokens()), None


def bart() -> Example:
    """BART for text to text."""
    config = hf.BartConfig(
        vocab_size=WORDS,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=128,
    )
    return hf.BartForConditionalGeneration(undropped(config)), text(labels=tokens()), None


def mamba() -> Example:
    """Mamba for next tokens, through a state space."""
    config = hf.MambaConfig(vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, state_size=8)
    ids = torch.randint(5, WORDS, (4, 16))
    return hf.MambaForCausalLM(config), {"input_ids": ids, "labels": ids.clone()}, None


def _speech() -> Any:
    return undropped(
        hf.Wav2Vec2Config(
            **{**ENCODER, "vocab_size": 32},
            conv_dim=(32, 32, 32),
            conv_stride=(5, 4, 2),
            conv_kernel=(10, 8, 4),
            num_feat_extract_layers=3,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            apply_spec_augment=False,
            layerdrop=0.0,
            ctc_zero_infinity=True,
            num_labels=5,
        )
    )


def recognized_speech() -> Example:
    """Model of speech to characters, by connectionist temporal classification."""
    model = hf.Wav2Vec2ForCTC(_speech())
    model.freeze_feature_encoder()
    return model, {"input_values": torch.randn(4, 3200), "labels": torch.randint(1, 32, (4, 10))}, None


def classified_speech() -> Example:
    """Classifier of recordings."""
    model = hf.Wav2Vec2ForSequenceClassification(_speech())
    model.freeze_feature_encoder()
    return model, {"input_values": torch.randn(4, 3200), "labels": torch.randint(5, (4,))}, None


def whisper() -> Example:
    """Whisper for speech to text."""
    config = hf.WhisperConfig(
        vocab_size=WORDS,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=64,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    batch = {"input_features": torch.randn(4, 16, 128), "labels": torch.randint(5, WORDS, (4, 24))}
    return hf.WhisperForConditionalGeneration(undropped(config)), batch, None


def vit() -> Example:
    """ViT for image classification."""
    config = hf.ViTConfig(**VISION, image_size=64, patch_size=8, num_labels=10)
    return hf.ViTForImageClassification(undropped(config)), _classified(), None


def dinov2() -> Example:
    """DINOv2 for image classification."""
    config = hf.Dinov2Config(**{**VISION, "intermediate_size": 256}, image_size=64, patch_size=8, num_labels=10)
    return hf.Dinov2ForImageClassification(undropped(config)), _classified(), None


def segformer() -> Example:
    """SegFormer for segmentation."""
    config = hf.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        decoder_hidden_size=32,
        num_labels=5,
        classifier_dropout_prob=0.0,
    )
    batch = {"pixel_values": images(), "labels": torch.randint(5, (BATCH, 64, 64))}
    return hf.SegformerForSemanticSegmentation(undropped(config)), batch, None


def clip() -> Example:
    """CLIP on pairs of images and texts."""
    tower = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
    words = {**tower, "vocab_size": WORDS, "max_position_embeddings": LENGTH, "eos_token_id": 2, "pad_token_id": 0}
    sights = {**tower, "image_size": 64, "patch_size": 8}
    config = hf.CLIPConfig(text_config=words, vision_config=sights, projection_dim=32)
    return hf.CLIPModel(config), text(pixel_values=images(), return_loss=True), None


def _classified() -> dict[str, Tensor]:
    return {"pixel_values": images(), "labels": torch.randint(10, (BATCH,))}


MODELS = entries(
    "transformers",
    {
        "BertForSequenceClassification": ("encoder", bert),
        "RobertaForMaskedLM": ("encoder", roberta),
        "DistilBertForQuestionAnswering": ("encoder", distilbert),
        "DebertaV2ForTokenClassification": ("encoder", deberta),
        "ModernBertForMaskedLM": ("encoder", modernbert),
        "GPT2LMHeadModel": ("decoder", gpt2),
        "OPTForCausalLM": ("decoder", opt),
        "LlamaForCausalLM": ("decoder", llama),
        "MistralForCausalLM": ("decoder", mistral),
        "Gemma2ForCausalLM": ("decoder", gemma),
        "MixtralForCausalLM": ("mixture of experts", mixtral),
        "OlmoeForCausalLM": ("mixture of experts", olmoe),
        "T5ForConditionalGeneration": ("encoder-decoder", t5),
        "BartForConditionalGeneration": ("encoder-decoder", bart),
        "MambaForCausalLM": ("state space", mamba),
        "Wav2Vec2ForCTC": ("speech", recognized_speech),
        "Wav2Vec2ForSequenceClassification": ("speech", classified_speech),
        "WhisperForConditionalGeneration": ("speech", whisper),
        "ViTForImageClassification": ("vision", vit),
        "Dinov2ForImageClassification": ("vision", dinov2),
        "SegformerForSemanticSegmentation": ("segmentation", segformer),
        "CLIPModel": ("vision and text", clip),
    },
)
