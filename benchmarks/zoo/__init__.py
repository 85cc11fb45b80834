"""Models of transformers, timm, torchvision and diffusers, called as documented, and measured under budgets."""

from benchmarks.zoo.torchvision_operators import declare_missing

declare_missing()
