"""Lower bound of the time of all schedules of a program, without looking at schedules.

Every product through a weight, every gradient of a weight and every product of weights has a kernel of its own: it
takes at least the time of storing its result and of its products, and a launch. Aggregates share kernels, so each pays
for what it stores and for its part of a launch. Everything else that is read or stored comes on top.
"""

from __future__ import annotations

from loadmaster.models.graph.costs import Costs
from loadmaster.models.graph.inline import Need, required
from loadmaster.models.graph.lowering import kernel_of, template_of
from loadmaster.models.graph.schedule import MOST_STORES


def least_us(costs: Costs) -> float:
    """Lower bound of the time of all kernels of a program, us."""
    program, hardware = costs.program, costs.hardware
    found = 0.0
    for n in required(program):
        template = template_of(program, n)
        if template in ("gemm", "outer", "fold"):
            kernel = kernel_of(program, (n,))
            found += costs.fastest(kernel, Need())[1]
        elif template == "traverse":
            stored_us = costs.cold_bytes(n) / (hardware.dram_gbps * 1e3)
            found += stored_us + hardware.launch_us / MOST_STORES[template]
    return found
