"""The processor's vector instructions are asked for early, where a step needs them, and found to be what they are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import fx

from loadmaster.executor.memory.fit.ahead import vector_isas

ASKED_BY_PYTORCH = """
from torch._inductor import cpu_vec_isa
print([(str(isa), isa.build_arch_flags()) for isa in cpu_vec_isa.valid_vec_isa_list()])
"""
ASKED_AHEAD = f"""
import torch
from torch import fx
from torch._inductor import cpu_vec_isa
from loadmaster.executor.memory.fit.ahead import vector_isas
graph = fx.Graph()
node = graph.call_function(torch.ones, (2,))
node.meta["example_value"] = torch.ones(2)
vector_isas.ask_ahead(fx.GraphModule({{}}, graph))
vector_isas.settle()
def never(*_):
    raise AssertionError("asked again")
cpu_vec_isa.VecISA.check_build = never
{ASKED_BY_PYTORCH}"""


def graph_on(device):
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.empty(2)
    graph.call_function(torch.relu, (x,)).meta["example_value"] = (torch.empty(2, device=device),)
    return fx.GraphModule({}, graph)


def test_a_step_that_computes_on_another_device_needs_none():
    assert vector_isas.computes_on_processor(graph_on("cpu"))
    assert not vector_isas.computes_on_processor(graph_on("meta"))


@pytest.mark.slow
def test_what_is_found_is_what_pytorch_finds(tmp_path):
    said = []
    for number, script in enumerate((ASKED_BY_PYTORCH, ASKED_AHEAD)):
        cold = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / str(number))}
        run = subprocess.run([sys.executable, "-c", script], env=cold, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        said.append(run.stdout)
    assert said[0] == said[1]
