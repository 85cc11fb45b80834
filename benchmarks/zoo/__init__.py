"""Models of transformers, timm, torchvision and diffusers, called as documented, and what becomes of each."""

from benchmarks.zoo.torchvision_operators import declare_missing

declare_missing()
