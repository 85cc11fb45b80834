"""``new graph``: a layer by its name, on a synthetic graph with the sizes of a well-known data set."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.lazy import suggest
from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.graph.datasets import DATA_SETS, data_set, generated
from loadmaster.models.graph.device import HARDWARE, graph_hardware
from loadmaster.models.graph.documents import check_problem, write_problem
from loadmaster.models.graph.library import LAYERS, layer
from loadmaster.models.graph.problem import FeatureStore, GraphProblem
from loadmaster.models.graph.statistics import statistics_of
from loadmaster.models.units import bytes_of


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags of a graph problem: layer, data set, sizes and device."""
    named = parser.add_argument("--model", required=True, metavar="NAME", help=", ".join(LAYERS))
    suggest(named, LAYERS)
    of = parser.add_argument("--dataset", required=True, metavar="NAME", help=", ".join(DATA_SETS))
    suggest(of, DATA_SETS)
    parser.add_argument("--width", type=int, default=64, metavar="N", help="numbers of a feature row (64)")
    parser.add_argument("--out", type=int, default=64, metavar="N", help="numbers of a result, all heads together (64)")
    parser.add_argument("--heads", type=int, default=1, metavar="N", help="(1)")
    parser.add_argument("--inference", action="store_true", help="the forward pass alone")
    parser.add_argument("--first-layer", action="store_true", help="features need no gradients")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of what is kept (fp32)")
    device = parser.add_argument("--hardware", default="h200", metavar="NAME", help=f"{', '.join(HARDWARE)} (h200)")
    suggest(device, HARDWARE)
    parser.add_argument("--feature-bytes", metavar="SIZE", help="of a row of features that the host holds: 400, 1KiB")
    parser.add_argument("--feature-reads", type=int, metavar="N", help="rows of them that a step reads (all nodes)")
    parser.add_argument("--link-gbps", type=float, default=50.0, metavar="X", help="of the link to the host (50)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the synthetic graph (0)")
    return parser


def build(arguments: argparse.Namespace) -> Document:
    """The problem document of one layer on a synthetic graph. Raises InputError naming the flag."""
    for flag in ("width", "out", "heads"):
        if (value := getattr(arguments, flag)) < 1:
            raise InputError(f"--{flag}", value, "is less than 1", "Give a whole number of at least 1.")
    if arguments.seed < 0:
        raise InputError("--seed", arguments.seed, "is less than 0", "Give a whole number of at least 0.")
    program = layer(arguments.model, arguments.width, arguments.out, arguments.heads)
    device = graph_hardware(arguments.hardware)
    of = data_set(arguments.dataset)
    statistics = statistics_of(*generated(of.name, arguments.seed), of.node_type_counts, of.relations)
    problem = GraphProblem(
        name=f"{arguments.model}-{of.name}",
        program=program,
        statistics=statistics,
        hardware=device,
        training=not arguments.inference,
        feature_gradients=not arguments.first_layer,
        element_bytes=2 if arguments.dtype == "bf16" else 4,
        store=_store(arguments, statistics.rows("node")),
        title=f"{arguments.model} from {arguments.width} to {arguments.out} on {of.name}",
        budget_bytes=device.memory_bytes,
    )
    check_problem(problem)
    return write_problem(problem)


def _store(arguments: argparse.Namespace, nodes: int) -> FeatureStore | None:
    if arguments.feature_bytes is None:
        if arguments.feature_reads is not None:
            remedy = "Say with --feature-bytes how large they are."
            raise InputError("--feature-reads", arguments.feature_reads, "is of no feature rows", remedy)
        return None
    row_bytes = bytes_of(arguments.feature_bytes, "--feature-bytes")
    reads = nodes if arguments.feature_reads is None else arguments.feature_reads
    if row_bytes < 1 or reads < 0:
        raise InputError("--feature-bytes", arguments.feature_bytes, "is no row", "Give at least a byte, and 0 reads.")
    if not 0 < arguments.link_gbps <= 1e6:
        raise InputError("--link-gbps", arguments.link_gbps, "is no bandwidth", "Give GB/s above 0.")
    return FeatureStore(rows=nodes, row_bytes=row_bytes, reads=reads, link_gbps=arguments.link_gbps)
