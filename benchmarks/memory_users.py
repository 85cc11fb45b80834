"""Models that are not in the repository, as their libraries write them: `fit`, as the README calls it, beside the knob.

    python -m benchmarks.memory_users                                on one GPU; goes on from what its result has
    CUDA_VISIBLE_DEVICES=1 python -m benchmarks.memory_users --part 1/2    half of the models, beside the other half
    python -m benchmarks.memory_users --device cpu --small           a trial, no result

Each model is a process of its own, in bfloat16 autocast. torch.compile runs under ``activation_memory_budget`` 0.5 and
0.2 first: peak, step, and the seconds from the call to the end of the first step. Then ``fit`` gets these peaks as its
budgets, and one half-way from the lower to what is there before a step. Caches of compilers and ours are empty before
every row. Peaks and times of both are measured by the same code: the highest bytes allocated, and the median of steps.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import record

GIB = 1 << 30
KNOBS = (0.5, 0.2)
STEPS = 12
WARM_UP = 3
NAME = "memory_users"


def timm_model(name: str, batch: int, small: str | None = None) -> Callable[[bool], Any]:
    """A classifier of timm with its own drop rates at zero, and images."""

    def make(is_small: bool) -> Any:
        import timm
        import torch

        chosen, count, size = (small or name, 2, 64) if is_small else (name, batch, 224)
        options = {"img_size": size} if is_small and "swin" in chosen else {}
        model = timm.create_model(chosen, pretrained=False, drop_rate=0.0, drop_path_rate=0.0, **options)
        return model, (torch.randn(count, 3, size, size), torch.randint(1000, (count,))), torch.nn.CrossEntropyLoss()

    return make


def torchvision_model(name: str, batch: int) -> Callable[[bool], Any]:
    """A classifier of torchvision, and images."""

    def make(is_small: bool) -> Any:
        import torch
        from torchvision import models

        count, size = (2, 64) if is_small else (batch, 224)
        model = getattr(models, name)(weights=None)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model, (torch.randn(count, 3, size, size), torch.randint(1000, (count,))), torch.nn.CrossEntropyLoss()

    return make


_SMALL = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}


def language_model(
    config: str, model: str, batch: int, length: int, small: dict[str, Any] | None = None, **options: Any
) -> Callable[[bool], Any]:
    """A model of transformers that is given ``labels``, as its documentation has it, and returns its loss."""

    def make(is_small: bool) -> Any:
        import torch
        import transformers

        made = getattr(transformers, config)(**{**options, **((small or _SMALL) if is_small else {})})
        made.use_cache = False
        for name in vars(made):
            if "dropout" in name:
                setattr(made, name, 0.0)
        shape = (2, 32) if is_small else (batch, length)
        tokens = torch.randint(2, made.vocab_size, shape)
        batch_of = {"input_ids": tokens, "labels": tokens.clone()}
        return getattr(transformers, model)(made).train(), batch_of, None

    return make


_ROBERTA = {"hidden_size": 768, "num_hidden_layers": 12, "max_position_embeddings": 1026, "vocab_size": 50_265}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
MODELS: dict[str, Callable[[bool], Any]] = {
    "timm convnext_base": timm_model("convnext_base", 96, "convnext_atto"),
    "transformers Qwen2 0.5B": language_model(
        *("Qwen2Config", "Qwen2ForCausalLM", 8, 1024, {**_SMALL, **_HEADS}),
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
    ),
    "timm swin_base_patch4_window7_224": timm_model("swin_base_patch4_window7_224", 96, "swin_tiny_patch4_window7_224"),
    "transformers RoBERTa": language_model(
        *("RobertaConfig", "RobertaForMaskedLM", 32, 512, {**_SMALL, "num_attention_heads": 4}), **_ROBERTA
    ),
    "torchvision efficientnet_v2_s": torchvision_model("efficientnet_v2_s", 96),
    "transformers BART": language_model(
        "BartConfig",
        "BartForConditionalGeneration",
        16,
        512,
        {"vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2},
    ),
    "timm regnety_032": timm_model("regnety_032", 128, "regnety_002"),
    "timm vit_base_patch16_224": timm_model("vit_base_patch16_224", 128, None),
    "transformers GPT-NeoX": language_model(
        *("GPTNeoXConfig", "GPTNeoXForCausalLM", 8, 1024, {**_SMALL, "num_attention_heads": 4}),
        vocab_size=50_432,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=16,
    ),
    "timm mixer_b16_224": timm_model("mixer_b16_224", 128, None),
    "transformers Mixtral": language_model(
        *("MixtralConfig", "MixtralForCausalLM", 8, 512, {**_SMALL, **_HEADS, "num_local_experts": 4}),
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=4,
    ),
    "timm densenet121": timm_model("densenet121", 96, None),
    "torchvision resnext50_32x4d": torchvision_model("resnext50_32x4d", 128),
    "transformers Mamba": language_model(
        *("MambaConfig", "MambaForCausalLM", 8, 512, {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2}),
        hidden_size=768,
        num_hidden_layers=12,
        vocab_size=50_280,
    ),
    "timm maxvit_tiny_tf_224": timm_model("maxvit_tiny_tf_224", 64, None),
    "transformers DeBERTa-v2": language_model(
        *("DebertaV2Config", "DebertaV2ForMaskedLM", 16, 512, {**_SMALL, "num_attention_heads": 4}),
        vocab_size=128_100,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
}


class Bench:
    """One model, and how its steps are measured."""

    def __init__(self, name: str, device: str, *, small: bool) -> None:
        import torch

        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.device = device
        with torch.device(device):
            self.model, self.batch, self.loss = MODELS[name](small)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.precision = functools.partial(torch.autocast, device, torch.bfloat16)

    def plain(self) -> Any:
        """The loss of one batch, as a user's loop has it."""
        if isinstance(self.batch, dict):
            return self.model(**self.batch).loss
        *inputs, wanted = self.batch
        return self.loss(self.model(*inputs), wanted)

    def first(self, prepare: Callable[[], Callable[[], Any]]) -> tuple[Callable[[], Any], float]:
        """A step made ready, and the seconds until the first was over."""
        import torch

        began = time.perf_counter()
        with self.precision():
            call = prepare()
        torch.manual_seed(1)
        self.step(call)
        self.settle()
        return call, time.perf_counter() - began

    def step(self, call: Callable[[], Any]) -> None:
        self.model.zero_grad(set_to_none=True)
        with self.precision():
            value = call()
        value.backward()

    def settle(self) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()

    def measured(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Peak and time of steps, and the gradients' norm."""
        import torch

        norms = [p.grad.double().square().sum() for p in self.model.parameters() if p.grad is not None]
        found: dict[str, Any] = {"gradient_norm": float(torch.stack(norms).sum().sqrt())}
        self.model.zero_grad(set_to_none=True)
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            found["resident_bytes"] = torch.cuda.memory_allocated()
        times = []
        for _ in range(WARM_UP + STEPS):
            self.settle()
            start_s = time.perf_counter()
            self.step(call)
            self.settle()
            times.append((time.perf_counter() - start_s) * 1e3)
        low, middle, high = statistics.quantiles(times[WARM_UP:], n=4)
        if self.device == "cuda":
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
        self.model.zero_grad(set_to_none=True)
        return {**found, "step_ms": middle, "quartiles_ms": [low, high]}

    def knob(self, value: float) -> dict[str, Any]:
        """torch.compile under its activation_memory_budget."""
        import torch
        import torch._functorch.config as config

        with config.patch(activation_memory_budget=value):
            call, seconds = self.first(lambda: torch.compile(self.plain, dynamic=False))
            return {"first_step_s": seconds, **self.measured(call)}

    def fit(self, budget_bytes: int) -> dict[str, Any]:
        """The README's call under a budget."""
        import loadmaster
        from loadmaster.executor import fit

        made = None

        def prepare() -> Callable[[], Any]:
            nonlocal made
            made = fit(
                self.model,
                self.batch,
                self.loss,
                budget_bytes=budget_bytes,
                optimizer=self.optimizer,
                planner=loadmaster.plan,
            )
            step = made.step
            return lambda: step(**self.batch) if isinstance(self.batch, dict) else step(*self.batch)

        call, seconds = self.first(prepare)
        assert made is not None
        said = {"runs": "planned" if made.plan is not None and made.chosen_knob is None else "knob"}
        return {"first_step_s": seconds, **said, "report": str(made.report), **self.measured(call)}


@contextlib.contextmanager
def fresh_caches() -> Iterator[None]:
    """Compilers and fits begin with nothing kept."""
    import torch
    from torch._inductor.utils import fresh_cache

    kept = os.environ.get("XDG_CACHE_HOME")
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder, fresh_cache():
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if kept is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = kept
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def rows_of(name: str, device: str, *, small: bool, until_s: float) -> Iterator[dict[str, Any]]:
    """The rows of one model, as they are measured."""
    bench = Bench(name, device, small=small)
    peaks: list[int] = []
    resident = 0
    for value in KNOBS:
        row = measured({"model": name, "system": "torch.compile", "knob": value}, functools.partial(bench.knob, value))
        yield row
        if "step_ms" in row:
            peaks.append(row.get("peak_bytes", 1 << 40))
            resident = row.get("resident_bytes", 0)
    budgets = [*peaks, (min(peaks) + resident) // 2] if peaks else []
    for at, budget_bytes in sorted(enumerate(budgets), key=lambda one: -one[0]):
        if time.monotonic() > until_s:
            return
        about = {"model": name, "system": "loadmaster", "budget": ("knob 0.5", "knob 0.2", "below")[at]}
        yield measured({**about, "budget_bytes": budget_bytes}, functools.partial(bench.fit, budget_bytes))


def measured(about: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row with what was measured, or why nothing was."""
    try:
        with fresh_caches():
            return {**about, **measure()}
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the row's result
        return {**about, "error": f"{type(error).__name__}: {error}"[:600]}


def shown(row: dict[str, Any]) -> str:
    """A row in a line."""
    what = f"knob {row['knob']}" if "knob" in row else f"{row['budget']}, {row.get('runs', '')}"
    if "error" in row:
        return f"{row['model']:36} {what:18} {row['error'][:300]}"
    budget = f" of {row['budget_bytes'] / GIB:.2f}" if "budget_bytes" in row else ""
    peak = f"{row.get('peak_bytes', 0) / GIB:.2f}{budget} GiB"
    figures = f"{row['step_ms']:.2f} ms, {peak}, first step {row['first_step_s']:.0f} s"
    return f"{row['model']:36} {what:18} {figures}, gradients {row['gradient_norm']:.5g}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--small", action="store_true", help="small models, and no result")
    p.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    p.add_argument("--part", default="1/1", help="of the models: 1/2 is every second one")
    p.add_argument("--wall", type=float, default=float("inf"), help="seconds after which no row is begun")
    p.add_argument("--out", type=Path, help="write here, not into benchmarks/results")
    p.add_argument("--one", help=argparse.SUPPRESS)
    a = p.parse_args()
    until_s = time.monotonic() + a.wall
    if a.one:
        for row in rows_of(a.one, a.device, small=a.small, until_s=until_s):
            print("ROW", json.dumps(row), flush=True)
        return
    part, parts = map(int, a.part.split("/"))
    rows: list[dict[str, Any]] = []
    for name in a.only[part - 1 :: parts]:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            break
        command = [sys.executable, "-m", "benchmarks.memory_users", "--one", name, "--device", a.device]
        command += [*(["--small"] if a.small else []), "--wall", str(left_s)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                if line.startswith("ROW "):
                    rows.append(json.loads(line.removeprefix("ROW ")))
                    print(shown(rows[-1]), flush=True)
                    if not a.small:
                        written(rows, a.out)


def written(rows: list[dict[str, Any]], out: Path | None) -> None:
    """Write rows beside those of other models."""
    models = {row["model"] for row in rows}
    path = record.RESULTS / f"{NAME}.json"
    kept = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    kept = [row for row in kept if row["model"] not in models]
    if out is not None:
        out.write_text(json.dumps(rows, indent=1), "utf-8")
    else:
        record.write(NAME, {"rows": kept + rows})


if __name__ == "__main__":
    main()
