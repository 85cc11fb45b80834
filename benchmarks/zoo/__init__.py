"""Models of transformers, timm, torchvision and diffusers, called as documented, and measured under budgets."""
