"""Wide residual networks on ImageNet ([Wang20] section 3.7.1): bottleneck blocks whose channels are all widened, as in
``wresnet-152-10``: 152 layers, every convolution with ten times the channels of ResNet-152.
"""

from __future__ import annotations

import math

from loadmaster.models.hardware import Hardware
from loadmaster.models.partition.tables.builder import Graph
from loadmaster.models.partition.tdl import operators as tdl

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CLASSES = 1000
IMAGE = 224


class WResNet:
    """Builder of the training step of one network."""

    def __init__(self, layers: int, width: int, batch: int, hardware: Hardware) -> None:
        self.g = Graph(4, hardware)
        self.layers, self.width, self.batch = layers, width, batch

    def build(self) -> Graph:
        """The whole step, with one buffer of history for each parameter."""
        g, wide = self.g, 64 * self.width
        x = g.tensor("image", (self.batch, 3, IMAGE, IMAGE), "input")
        labels = g.tensor("labels", (self.batch,), "input", 8)
        x = self._normalized("stem", x, wide, 7, 2)
        x = self._max_pool(x)
        for group, blocks in enumerate(BLOCKS[self.layers]):
            channels = wide * 2**group
            for block in range(blocks):
                # The first block of a group halves the image, and has a shortcut of its own.
                tie = f"group{group}.first" if block == 0 else f"group{group}.block"
                with g.repeated(f"group{group}.{block}", tie):
                    x = self._bottleneck(x, channels, 2 if block == 0 and group else 1, first=block == 0)
        x = self._mean_pool(x)
        weight = g.parameter("classifier", (g.shape(x)[1], CLASSES))
        logits = g.product("logits", "nc,ck->nk", x, weight)
        g.loss(logits, labels, tdl.CROSS_ENTROPY, tdl.CROSS_ENTROPY_GRADIENT)
        g.backward()
        g.optimizer(1, 4)
        return g

    def _bottleneck(self, x: int, channels: int, stride: int, *, first: bool) -> int:
        y = self._normalized("conv1", x, channels, 1, 1)
        y = self._normalized("conv2", y, channels, 3, stride)
        y = self._normalized("conv3", y, 4 * channels, 1, 1, activated=False)
        if first:
            x = self._normalized("shortcut", x, 4 * channels, 1, stride, activated=False)
        return self.g.elementwise("relu", self.g.sum_of("residual", x, y))

    def _normalized(self, name: str, x: int, channels: int, kernel: int, stride: int, *, activated: bool = True) -> int:
        y = self._batch_norm(name, self._convolution(name, x, channels, kernel, stride))
        return self.g.elementwise(f"{name}.relu", y) if activated else y

    def _convolution(self, name: str, x: int, channels: int, kernel: int, stride: int) -> int:
        g = self.g
        n, c, height, wide = g.shape(x)
        weight = g.parameter(f"{name}.weight", (channels, c, kernel, kernel))
        shape = (n, channels, height // stride, wide // stride)
        flops = 2.0 * math.prod(shape) * c * kernel * kernel
        told = (stride, kernel // 2, kernel)

        def backward(made: list[int]) -> None:
            gradient = g.gradient(made[0])
            if g.needs_gradient(x):
                g.gradients_by(
                    f"{name}, input gradient", tdl.conv2d_input_gradient(*told), (gradient, weight), (x,), flops
                )
            g.gradients_by(
                f"{name}, weight gradient", tdl.conv2d_weight_gradient(*told), (gradient, x), (weight,), flops
            )

        return g.general(name, tdl.conv2d(*told), (x, weight), [shape], backward, flops)[0]

    def _batch_norm(self, name: str, x: int) -> int:
        g = self.g
        channels = g.shape(x)[1]
        scale, shift = (g.parameter(f"{name}.{what}", (channels,)) for what in ("scale", "shift"))

        def backward(made: list[int]) -> None:
            of = (x, scale, shift)
            g.gradients_by(f"{name}.norm, gradient", tdl.BATCH_NORM_GRADIENT, (g.gradient(made[0]), x, scale), of)

        return g.general(f"{name}.norm", tdl.BATCH_NORM, (x, scale, shift), [g.shape(x)], backward)[0]

    def _max_pool(self, x: int) -> int:
        g = self.g
        n, c, height, wide = g.shape(x)

        def backward(made: list[int]) -> None:
            g.gradients_by("pool, gradient", tdl.MAX_POOL_GRADIENT, (g.gradient(made[0]), x), (x,))

        return g.general("pool", tdl.MAX_POOL, (x,), [(n, c, height // 2, wide // 2)], backward)[0]

    def _mean_pool(self, x: int) -> int:
        g = self.g

        def backward(made: list[int]) -> None:
            g.gradients_by("mean, gradient", tdl.MEAN_POOL_GRADIENT, (g.gradient(made[0]),), (x,))

        return g.general("mean", tdl.MEAN_POOL, (x,), [g.shape(x)[:2]], backward)[0]
