"""``demo``: the main job on two real models, end to end, on a machine without a GPU.

Capture each model, plan it under half of its peak through a running service, train with the plan, and hold it against
plain PyTorch. Whatever needs torch runs in processes of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.api.cli.files import write_json
from loadmaster.api.cli.service import follow
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.client import Client
from loadmaster.api.columns import table
from loadmaster.api.protocol import Backoff
from loadmaster.api.report.memory.pictures import png
from loadmaster.api.report.memory.plan_page import plan_page
from loadmaster.api.report.memory.view import view
from loadmaster.api.report.memory.words import summary
from loadmaster.errors import InputError, LoadmasterError, MissingExtraError
from loadmaster.models.documents import load_document
from loadmaster.models.files import write_bytes, write_text
from loadmaster.models.kinds import limit_of
from loadmaster.models.memory.documents import read_plan, read_problem, write_plan
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.units import show_bytes, show_cost, show_share
from loadmaster.planner.options import PlanOptions

MODELS = ("resnet50", "gpt")
STEPS = 3
# Gradients of float32 sums in another order; the same operators give the same bits.
TOLERANCE = 1e-3
_READY_WITHIN_S = 60.0
_STDERR = 2  # the file descriptor: output of children is not our data


@dataclass(frozen=True)
class Outcome:
    """One model: its plan, what training under it measured, and where the pictures are."""

    model: str
    plan: MemoryPlan
    report: dict[str, Any]
    page: Path

    @property
    def kept_promise(self) -> bool:
        """True if the measured peak is within the budget and the gradients are those of plain PyTorch."""
        fits = self.report["planned"]["peak_bytes"] <= self.plan.budget_bytes
        return bool(fits and self.report["gradients"]["largest_relative"] <= TOLERANCE)


def demo_arguments(demo: argparse.ArgumentParser) -> None:
    """Add the arguments of ``demo`` to its parser."""
    demo.description = _demo.__doc__
    demo.add_argument("--output", default="demo", metavar="FOLDER", help="where everything is written (demo)")
    demo.add_argument("--time-limit", type=float, default=45.0, metavar="S", help="planning, for each model (45)")
    demo.add_argument("--model", choices=MODELS, action="append", help="only this one")
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Capture, plan through a service, train and compare two models on this machine's CPU. Takes a few minutes."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "torch")
    if not Path("examples/demo_models.py").is_file():
        remedy = "Run it in the root of the repository, or as: make demo."
        raise InputError("examples", str(Path.cwd()), "has no examples/demo_models.py", remedy)
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    options = PlanOptions(time_limit_s=arguments.time_limit)
    with _service(folder, terminal) as url, Client(url, backoff=Backoff(attempts=3)) as client:
        outcomes = [_model(name, folder, options, client, terminal) for name in arguments.model or MODELS]
    terminal.data("\n" + _comparison(outcomes))
    terminal.say(f"\nall of it took {time.monotonic() - started:.0f} s; everything is in {folder}/")
    return 0 if all(outcome.kept_promise for outcome in outcomes) else 1


@contextmanager
def _service(folder: Path, terminal: Terminal) -> Iterator[str]:
    """A service of our own on a free port, with one worker; its log goes to a file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    database = f"sqlite:///{(folder / 'service.db').resolve()}"
    command = [sys.executable, "-m", "loadmaster.api.cli", "serve", "--port", str(port), "--database-url", database]
    # Whatever the environment says of services that others reach.
    command += ["--host", "127.0.0.1", "--keys", "off"]
    log = folder / "service.log"
    with log.open("w") as stream, subprocess.Popen(command, stderr=stream, stdout=stream) as process:
        try:
            _wait_until_ready(url, process, log)
            terminal.say(f"the service is running at {url}")
            yield url
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    with Client(url, backoff=Backoff(attempts=1)) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.get("/readyz")
                return
            except LoadmasterError:
                # Not listening yet: the loop ends with the process or the deadline.
                time.sleep(0.1)
    raise LoadmasterError(f"the service did not start; its log is {log}")


def _model(name: str, folder: Path, options: PlanOptions, client: Client, terminal: Terminal) -> Outcome:
    """Capture, plan and train one model, and write its report and picture."""
    files = {what: folder / f"{name}.{what}" for what in ("problem.json", "plan.json", "report.json", "png", "html")}
    factory = f"examples.demo_models:{name}"
    terminal.say(f"\n{name}: capturing the model and measuring its operators")
    capture = ["loadmaster.api.cli", "capture", factory, "--backend", "eager", "--name", name]
    _run([*capture, "-o", str(files["problem.json"])], "capture")
    problem = read_problem(load_document(files["problem.json"]))
    budget_bytes = limit_of(problem.kind).value("50%", problem, "--budget")
    terminal.say(f"{name}: planning under {show_bytes(budget_bytes)}, half of the peak with memory to spare")
    handle = client.submit(problem.with_budget(budget_bytes), options, labels={"demo": name})
    follow(handle, terminal, problem.unit)
    plan = read_plan(handle.document())
    write_json(str(files["plan.json"]), write_plan(plan), terminal)
    terminal.data(summary(plan))
    if plan.schedule is None:
        raise LoadmasterError(f"{name} cannot be trained in half of its peak: see {files['plan.json']}")
    seen = view(problem, plan)
    write_text(files["html"], plan_page(seen), "--folder")
    write_bytes(files["png"], png(seen), "--folder")
    terminal.say(f"{name}: training {STEPS} steps with the plan, and {STEPS} without")
    train = ["examples.train", factory, str(files["plan.json"]), "--backend", "eager", "--steps", str(STEPS)]
    _run([*train, "-o", str(files["report.json"])], "training")
    return Outcome(name, plan, json.loads(files["report.json"].read_text()), files["html"])


def _run(arguments: list[str], what: str) -> None:
    """Run a Python module in a process of its own, its output on stderr."""
    here = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    # Threads that wait without spinning leave the other processes of a small machine their turn.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": here}
    done = subprocess.run([sys.executable, "-m", *arguments], env=environment, stdout=_STDERR, check=False)
    if done.returncode:
        raise LoadmasterError(f"{what} ended with status {done.returncode}: {' '.join(arguments)}")


def _comparison(outcomes: list[Outcome]) -> str:
    rows = [
        ["budget", *(show_bytes(o.plan.budget_bytes) for o in outcomes)],
        ["peak, planned", *(show_bytes(o.plan.check["peak_bytes"]) for o in outcomes)],
        ["peak, measured", *(show_bytes(o.report["planned"]["peak_bytes"]) for o in outcomes)],
        ["peak, plain PyTorch", *(show_bytes(o.report["plain"]["peak_bytes"]) for o in outcomes)],
        ["step, planned", *(show_cost(o.plan.check["time_us"], "us") for o in outcomes)],
        ["step, measured", *(show_cost(o.report["planned"]["step_us"], "us") for o in outcomes)],
        ["step, plain PyTorch", *(show_cost(o.report["plain"]["step_us"], "us") for o in outcomes)],
        ["gradients", *(_gradients(o.report["gradients"]) for o in outcomes)],
        ["no plan is below", *(show_cost(o.plan.bound or 0.0, o.plan.unit) for o in outcomes)],
        ["proved gap", *(show_share(o.plan.gap) for o in outcomes)],
        ["within the budget", *("yes" if o.kept_promise else "NO" for o in outcomes)],
        ["report", *(str(o.page) for o in outcomes)],
    ]
    return table(rows, ["", *(o.model for o in outcomes)])


def _gradients(found: dict[str, Any]) -> str:
    if found["bit_equal"]:
        return "equal, bit by bit"
    equal = "equal" if found["largest_relative"] <= TOLERANCE else "DIFFERENT"
    return f"{equal} (within {found['largest_relative']:.1e})"
