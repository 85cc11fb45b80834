"""The host link of a captured problem: given, from the catalogue, measured."""

from __future__ import annotations

import json

import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor import capture
from loadmaster.executor.memory.command import main
from loadmaster.executor.steps import host_link as link
from loadmaster.models.hardware import HostLink, hardware
from tests.executor.memory.models import mlp_case


def test_the_link_is_given_or_named_or_absent() -> None:
    model, inputs, loss = mlp_case()
    captured = {
        given: capture(model, inputs, loss, hardware="h200", backend="eager", host_link=given).host_link
        for given in (False, True, HostLink(1.0, 2.0, 3))
    }
    entry = hardware("h200")
    named = HostLink(entry.to_host_gbps, entry.from_host_gbps)
    assert captured == {False: None, True: named, HostLink(1.0, 2.0, 3): HostLink(1.0, 2.0, 3)}


def test_what_is_sent_cuts_a_compiled_step_only() -> None:
    h200 = torch.device("cpu"), "h200"
    assert link.host_link(*h200) == hardware("h200").host_link()
    assert link.host_link(*h200, compiled=True) == hardware("h200").host_link(compiled=True)
    model, inputs, loss = mlp_case()
    captured = capture(model, inputs, loss, hardware="h200", backend="inductor", host_link=True).host_link
    assert captured is not None and captured.cut_us > 0


def test_the_cpu_has_no_link_to_measure() -> None:
    model, inputs, loss = mlp_case()
    with pytest.raises(InputError, match="host_link") as found:
        capture(model, inputs, loss, backend="eager", host_link=True)
    assert "HostLink of your own" in str(found.value)


@pytest.mark.slow
def test_the_command_takes_it(tmp_path) -> None:
    target = tmp_path / "problem.json"
    given = ["examples.gpt:small", "--hardware", "a100-40gb"]
    assert main([*given, "--backend", "eager", "--offload", "-o", str(target)]) == 0
    assert json.loads(target.read_text())["host_link"] == {"to_host_gbps": 25.0, "from_host_gbps": 25.0}


def test_a_container_may_have_less_than_the_host(tmp_path, monkeypatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(link, "_CGROUP", tmp_path)
    whole = link.host_bytes()
    assert whole > 1 << 28
    for text, expected in (("max\n", whole), ("1048576\n", 1 << 20), (f"{1 << 60}\n", whole)):
        limit.write_text(text)
        assert link.host_bytes() == expected


def test_what_a_container_has_left(tmp_path, monkeypatch) -> None:
    """What it uses is gone, but for the cache of files; more than the host has available is never said."""
    monkeypatch.setattr(link, "_CGROUP", tmp_path)
    monkeypatch.setattr(link, "_MEMORY", tmp_path / "meminfo")
    assert link.available_host_bytes() == link.host_bytes()
    (tmp_path / "memory.max").write_text("1000000\n")
    assert link.available_host_bytes() == 1_000_000
    (tmp_path / "memory.current").write_text("600000\n")
    assert link.available_host_bytes() == 400_000
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 150000\n")
    assert link.available_host_bytes() == 550_000
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 300 kB\n")
    assert link.available_host_bytes() == 300 * 1024
    (tmp_path / "memory.current").write_text("2000000\n")
    assert link.available_host_bytes() == 0


@pytest.mark.gpu
def test_measured_links_are_plausible() -> None:
    measured = link.host_link(torch.device("cuda"))
    for gbps in (measured.to_host_gbps, measured.from_host_gbps):
        assert 2 < gbps < 1000
    assert measured.capacity_bytes is not None and 1 << 30 < measured.capacity_bytes < link.host_bytes()
    assert (measured.cut_us, measured.cut_gbps) == (0.0, None)
    compiled = link.host_link(torch.device("cuda"), compiled=True)
    assert compiled.cut_us > 0
    assert compiled.cut_gbps is not None and 10 * measured.to_host_gbps < compiled.cut_gbps < 20_000
