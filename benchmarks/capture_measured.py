"""Capture of models with their operators measured on this machine's GPU, in one process, which none may end.

    python -m benchmarks.capture_measured [--wall 440] [--part 1/8] [--only transformers/CLIPModel ...]

First CLIP at its real size, with 256 images and 77 tokens; then the models of docs/models.md, and every class of
transformers and timm (:mod:`benchmarks.zoo.every_class`), narrow, in batches that are larger than their sequences are
long. A line for each: captured, refused, or failed, and its operators without a measurement. Each name is written
before its model is built, so that what ends the process is known. The exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.zoo.entries import Example
from benchmarks.zoo.every_class import makers, names
from benchmarks.zoo.models import LIBRARIES, of_library
from loadmaster.errors import LoadmasterError
from loadmaster.executor import capture
from loadmaster.executor.costs import profiled
from loadmaster.executor.steps.user_cache import FOLDER

LEAST_BATCH = 200  # more than an image of 224 pixels has patches
MEASURING_S = 4.0  # for the operators of one model


def clip() -> Example:
    """Build OpenAI's smaller CLIP, as transformers configures it by default."""
    import transformers

    config = transformers.CLIPConfig()
    tokens = torch.randint(3, config.text_config.vocab_size, (256, 77))
    images = torch.randn(256, 3, config.vision_config.image_size, config.vision_config.image_size)
    return transformers.CLIPModel(config), {"input_ids": tokens, "pixel_values": images, "return_loss": True}, None


def examples() -> Iterator[tuple[str, Callable[[], Example]]]:
    """Yield all models to capture, by name: CLIP at its real size, the zoo, every class."""
    yield "CLIPModel, 256 images and 77 tokens", clip
    for library in LIBRARIES:
        try:
            found = of_library(library)
        except ImportError as error:
            print(f"{library} is left out: {error}", flush=True)
            continue
        yield from ((f"{library}/{entry.name}, zoo", entry.build) for entry in found)
    yield from ((name, lambda name=name: first_built(name)) for name in names())  # type: ignore[misc]


def first_built(name: str) -> Example:
    """Build the narrowest model of a class that its library can build."""
    why: Exception | None = None
    for make in makers(name):
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - the library's own
            why = error
    raise LookupError(f"its library builds none: {why}")


def grown(batch: Any) -> Any:
    """Repeat a batch: more samples than its sequences are long."""
    tensors = [leaf for leaf in pytree.tree_leaves(_plain(batch)) if isinstance(leaf, Tensor) and leaf.dim()]
    samples = tensors[0].shape[0]
    longest = max((t.shape[1] for t in tensors if t.dim() == 2), default=0)
    times = -(-max(LEAST_BATCH, longest + 1) // samples)

    def more(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != samples:
            return leaf
        return leaf.repeat(times, *[1] * (leaf.dim() - 1))

    return pytree.tree_map(more, _plain(batch))


def _plain(batch: Any) -> Any:
    return dict(batch) if hasattr(batch, "keys") else tuple(batch)


class Told(logging.Handler):
    """Handler that collects log messages about operators without a measurement."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record if it is about an operator priced by a formula."""
        if "priced by a formula" in record.getMessage():
            self.found.append(record.getMessage())


def outcome(make: Callable[[], Example], device: torch.device, told: Told) -> str:
    """Capture one model, and tell in words how it ended."""
    told.found.clear()
    try:
        model, batch, loss = make()
    except Exception as error:  # noqa: BLE001 - the library's own
        return f"left out: {str(error).splitlines()[0]}"
    try:
        model, batch = copy.deepcopy(model).to(device).train(), grown(batch)
        batch = pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch)
        problem = capture(model, batch, loss, backend="eager", costs=profiled(device, MEASURING_S), progress=False)
        said = f"captured, {len(problem.forward) + len(problem.backward)} operators"
    except LoadmasterError as refusal:
        said = f"refused: {str(refusal).splitlines()[0][:150]}"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        said = f"FAILED: {type(error).__name__}: {(str(error) or '-').splitlines()[0][:300]}"
    return "\n    ".join([said, *told.found])


def main() -> int:
    """Capture the models one after another."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--wall", type=float, default=440.0, help="seconds after which no other model is begun")
    p.add_argument("--part", default="1/1", help="K/N: every N-th model from the K-th on")
    p.add_argument("--only", nargs="+", metavar="NAME", help="models whose names begin so")
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    began, device = time.perf_counter(), torch.device(a.device)
    part, parts = map(int, a.part.split("/"))
    told = Told()
    logging.getLogger("loadmaster").addHandler(told)
    failed: list[str] = []
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder  # nothing is known from earlier runs
        for n, (name, make) in enumerate(examples()):
            chosen = any(name.startswith(start) for start in a.only) if a.only else n % parts == part - 1
            if not chosen:
                continue
            if time.perf_counter() - began > a.wall:
                print(f"time is over before {name}", flush=True)
                break
            start = time.perf_counter()
            print(f"{name}: ", end="", flush=True)
            said = outcome(make, device, told)
            print(f"{time.perf_counter() - start:.0f} s, {said}", flush=True)
            count += 1
            if said.startswith("FAILED"):
                failed.append(name)
            torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.synchronize()  # raises where a kernel has failed: nothing runs after that
    print(f"{count} models, {len(failed)} failed: {', '.join(failed) or 'none'}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
