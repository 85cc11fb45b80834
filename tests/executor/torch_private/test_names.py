"""Each private name that Loadmaster uses is in the PyTorch that is installed."""

from __future__ import annotations

import importlib
import operator
import pkgutil
import re
import subprocess
import sys

import pytest
import torch

from loadmaster.errors import LoadmasterError
from loadmaster.executor import torch_private
from loadmaster.executor.torch_private import needed
from loadmaster.executor.torch_private.patches import REPLACED

MODULES = sorted(found.name for found in pkgutil.iter_modules(torch_private.__path__))
LOADS_MORE = {"dynamo", "inductor"}


@pytest.mark.parametrize("name", MODULES)
def test_names_of_a_module_are_in_this_pytorch(name):
    importlib.import_module(f"{torch_private.__name__}.{name}")


def found(attribute):
    """The attribute with this full name; None where it is missing."""
    parts = attribute.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        try:
            return operator.attrgetter(".".join(parts[count:]))(module)
        except AttributeError:
            return None
    return None


@pytest.mark.parametrize("one", REPLACED, ids=lambda one: one.attribute)
def test_what_is_replaced_is_there_and_the_replacement_too(one):
    importlib.import_module(f"loadmaster.executor.{one.by}")
    assert one.optional or found(one.attribute) is not None


def test_what_a_step_is_traced_with_is_listed():
    from loadmaster.executor.steps.drawn_once import EACH_DRAW_ITS_OWN, TENSORS_SAVED
    from loadmaster.executor.steps.one_graph.dynamo_changes import TRACED_OTHERWISE

    listed = {one.attribute for one in REPLACED}
    for owner, name, _ in (*TRACED_OTHERWISE, EACH_DRAW_ITS_OWN, TENSORS_SAVED):
        place = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        assert f"{place}.{name}" in listed


@pytest.mark.slow
def test_importing_the_light_modules_loads_one_module_of_settings():
    light = "; ".join(f"import {torch_private.__name__}.{name}" for name in MODULES if name not in LOADS_MORE)
    program = f"""
import sys, torch
before = set(sys.modules)
{light}
loaded = [name for name in set(sys.modules) - before if name.startswith("torch.")]
assert loaded in ([], ["torch._functorch.config"]), loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize("names", ["import torch._not_there", "torch._not_there"])
def test_what_is_missing_is_an_error_that_names_version_and_remedy(names):
    said = rf"PyTorch {re.escape(torch.__version__)}.*_not_there.*Install PyTorch 2\.11"
    with pytest.raises(LoadmasterError, match=said), needed():
        exec(names)
