"""The command behind ``loadmaster capture MODULE:FACTORY graph``: a layer and a graph in, a graph problem out."""

from __future__ import annotations

import argparse
from typing import Literal

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.calibrate import calibrated
from loadmaster.executor.graph.compiled.capture import capture
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.steps import made_step
from loadmaster.executor.steps.factory import FIELD, call_factory, device_named
from loadmaster.models.graph.device import HARDWARE, graph_hardware
from loadmaster.models.graph.problem import GraphProblem

MEASURED = "measured"


def parser() -> argparse.ArgumentParser:
    """Argument parser of ``loadmaster capture MODULE:FACTORY graph``."""
    p = argparse.ArgumentParser(
        prog="loadmaster capture", description="Capture a layer of a graph network and the graph that it runs on."
    )
    p.add_argument("factory", metavar="MODULE:FACTORY", help="returns (layer, graph): a traced program, and a Graph")
    p.add_argument("-o", "--output", metavar="PROBLEM.json", help="- or none: standard output")
    p.add_argument("--name", help="name of the problem (default: the factory's)")
    p.add_argument("--device", default="cpu", help="where to build the graph and count it (default: cpu)")
    p.add_argument(
        "--hardware",
        choices=[*HARDWARE, MEASURED],
        default="h200",
        help=f"whose times are estimated; {MEASURED}: those of the GPU that is present (default: h200)",
    )
    p.add_argument("--inference", action="store_true", help="plan the forward pass alone")
    p.add_argument("--no-feature-gradients", action="store_true", help="features need none: nothing comes before")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the layer (float32)")
    p.add_argument("--verbose", action="store_true", help="the whole traceback of what fails in your own code")
    return p


def run(arguments: argparse.Namespace) -> None:
    """Capture, write the document, and say how much it needs. InputError: factory, device, layer or graph unusable."""

    def captured() -> GraphProblem:
        layer, graph, _ = call_factory(arguments.factory, device_named(arguments.device))
        if not isinstance(graph, Graph):
            raise InputError(FIELD, type(graph).__name__, "returned no graph second", "Return (layer, graph).")
        element_bytes: Literal[2, 4] = 2 if arguments.dtype == "bfloat16" else 4
        is_measured = arguments.hardware == MEASURED
        hardware = calibrated(element_bytes=element_bytes) if is_measured else graph_hardware(arguments.hardware)
        return capture(
            layer,
            graph,
            hardware=hardware,
            training=not arguments.inference,
            feature_gradients=not arguments.no_feature_gradients,
            element_bytes=element_bytes,
            name=arguments.name or arguments.factory.partition(":")[2],
        )

    made_step.write_captured(arguments, captured)


main = made_step.command(parser, run)
