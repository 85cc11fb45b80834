"""The kind ``collective`` on the executor floor: plans run over ``torch.distributed``."""
