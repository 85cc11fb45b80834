"""What the planner finds runs elsewhere, too: exported, and played by the interpreters of the exports' tests."""

from __future__ import annotations

import json

import pytest

from loadmaster.models.collective.exports.msccl import msccl_xml
from loadmaster.models.collective.exports.mscclpp import mscclpp_plan
from loadmaster.models.collective.problem import Collective
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner import plan
from tests.models.collective import test_export_msccl as msccl
from tests.models.collective import test_export_mscclpp as mscclpp
from tests.models.collective.tiny import problem, ring, switched


@pytest.mark.parametrize("topology", [ring(4), switched(2, 2)], ids=lambda t: t.name)
@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall", "reduce_scatter", "broadcast"])
def test_planned_algorithms_run_by_other_runtimes_rules(collective: Collective, topology: Topology) -> None:
    more = {"root": 1} if collective == "broadcast" else {}
    given = problem(topology, collective, 1 << 14, chunk_counts=(2,), **more)
    (algorithm,) = plan(given, time_limit_s=0.5, method="greedy").algorithms
    for instances in (1, 2):
        text = msccl_xml(given, algorithm, instances=instances)
        document = json.loads(json.dumps(mscclpp_plan(given, algorithm, name="planned", instances=instances)))
        mscclpp.expect_arrays_hold(document)
        if algorithm.form == "direct":
            msccl.play(text, given, slots=0, seed=instances)
            mscclpp.play(document, given, seed=instances)
