"""The hardware catalogue: complete, plausible, found by name, clear about what it does not know."""

from __future__ import annotations

import json

import pytest

from loadmaster.errors import InputError
from loadmaster.models.hardware import catalogue, hardware, hardware_reported_as


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_entries_are_plausible(entry):
    assert entry.memory_bytes >= 8 * 2**30
    assert entry.dram_gbps > entry.to_host_gbps
    assert entry.from_host_gbps > 0
    assert entry.tflops["float32"] > 0
    assert entry.tflops_for("bfloat16") >= entry.tflops_for("float64") / 4
    assert 0 < entry.compute_share <= 1
    assert 0 < entry.dram_share <= 1
    assert entry.launch_us > 0
    assert hardware(entry.name.upper()) is entry
    assert json.loads(json.dumps(entry.document()))["name"] == entry.name


def test_names_are_unique_and_the_asked_for_ones_are_there():
    names = [entry.name for entry in catalogue()]
    assert len(set(names)) == len(names)
    assert {"p100", "v100-16gb", "a100-40gb", "a100-80gb", "h100", "h200", "rtx4090", "cpu"} <= set(names)


def test_driver_names():
    assert hardware_reported_as("NVIDIA H200") is hardware("h200")
    assert hardware_reported_as("NVIDIA A100-SXM4-80GB") is hardware("a100-80gb")
    assert hardware_reported_as("Some other GPU") is None


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match=r"hardware: .*'tpu'.*h200"):
        hardware("tpu")
