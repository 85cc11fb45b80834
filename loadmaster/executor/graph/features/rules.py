"""Rules of placement: where an operator on unified tensors computes, and where its result is.

After PyTorch-Direct ([Wu24], section 4.4.3): the affinity of the unified operands decides, unless other
operands leave no choice. A GPU cannot read ordinary host memory, a processor cannot read a GPU's.

| affinity of the unified operands | CUDA tensors | CPU tensors that are not scalars | computes on | result |
| --- | --- | --- | --- | --- |
| any | one or more | none | GPU | CUDA tensor |
| any | one or more | one or more | refused, as PyTorch refuses it | |
| at least one "gpu" | none | none | GPU | CUDA tensor |
| at least one "gpu" | none | one or more | host | unified, affinity "gpu" |
| all "host" | none | any number | host | unified, affinity "host" |

Scalars (tensors without dimensions) in host memory go anywhere, as in PyTorch. So do the tensors that an index operator
takes its indices from: they are brought to where it computes. Views of a unified tensor are unified wherever they are
taken, and what writes to one computes on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.errors import InputError

Affinity = Literal["gpu", "host"]


@dataclass(frozen=True)
class Placement:
    """Placement of one operator and its result.

    Attributes:
        computes_on: "gpu" or "host".
        result: "cuda" for an ordinary tensor on the GPU, "unified" for a unified tensor.
        affinity: of a unified result.
    """

    computes_on: Literal["gpu", "host"]
    result: Literal["cuda", "unified"]
    affinity: Affinity


def expect_affinity(affinity: str) -> None:
    """Raise InputError unless the affinity is "gpu" or "host"."""
    if affinity not in ("gpu", "host"):
        raise InputError("affinity", affinity, "is no affinity", 'Say "gpu" or "host".')


def placement(affinities: Sequence[Affinity], cuda_tensors: int, cpu_tensors: int) -> Placement:
    """Place an operator by the table of this module.

    Args:
        affinities: of the unified operands, at least one.
        cuda_tensors: how many operands are ordinary CUDA tensors.
        cpu_tensors: how many are ordinary host tensors with at least one dimension.

    Raises:
        InputError: operands in ordinary host memory together with CUDA tensors.
    """
    affinity: Affinity = "gpu" if "gpu" in affinities else "host"
    if cuda_tensors and cpu_tensors:
        raise InputError(
            "operands",
            f"{cuda_tensors} CUDA tensors, {cpu_tensors} CPU tensors",
            "have no device that reads them all, unified tensors or not",
            "Bring the CPU tensors to the GPU, or make them unified.",
        )
    if cuda_tensors or (affinity == "gpu" and not cpu_tensors):
        return Placement("gpu", "cuda", affinity)
    return Placement("host", "unified", affinity)
