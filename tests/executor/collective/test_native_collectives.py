"""Planned calls in C++: launched where a plan wins, the inner group's elsewhere; and a machine that cannot compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from loadmaster.executor import compiled_library
from loadmaster.executor.collective.calibration import Calibration, Timing
from loadmaster.executor.collective.native import group as native_group
from loadmaster.executor.compiling import BuildError, compiler
from tests.executor.collective import native_scenarios
from tests.executor.worlds import reports

SCENARIOS = {one.__name__: one for one in native_scenarios.SCENARIOS}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return reports(SCENARIOS, tmp_path_factory.mktemp("native"), 2)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler here")
@pytest.mark.parametrize("name", SCENARIOS)
def test_on_two_processes(two, name):
    assert two[name] == [""] * 2


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A group of one, and an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native_group._module.cache_clear()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()
    native_group._module.cache_clear()


def test_no_compiler_is_said_once(alone, monkeypatch, caplog):
    monkeypatch.setattr(compiled_library, "compiler", lambda: None)
    assert native_group.extension(alone) is None
    assert "there is no C++ compiler" in caplog.text and "through Python" in caplog.text


def test_a_failing_compiler_is_quoted(alone, monkeypatch, caplog):
    def refuses(*_args: object) -> None:
        raise BuildError("c++ failed: error: no such header")

    monkeypatch.setattr(native_group, "compile_shared", refuses)
    assert native_group.extension(alone) is None
    assert "no such header" in caplog.text


def test_a_broken_library_is_not_used(alone, monkeypatch, caplog):
    monkeypatch.setattr(native_group, "compile_shared", lambda sources, target, *flags: target.write_bytes(b"broken"))
    assert native_group.extension(alone) is None
    assert "through Python" in caplog.text


def test_where_nothing_can_be_kept_nothing_is_left(alone, monkeypatch, tmp_path):
    made = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "store"))  # a file
    monkeypatch.setattr(native_group, "compile_shared", lambda sources, target, *flags: made.append(target))
    assert native_group.extension(alone) is None
    assert len(made) == 1 and not made[0].parent.exists()


def test_between_two_sizes_both_must_be_won():
    timings = tuple(Timing("allreduce", 1024 << k, planned, 10.0) for k, planned in enumerate((5.0, 5.0, 20.0, 5.0)))
    known = Calibration("cpu", 2, (), timings)
    assert [known.wins("allreduce", size) for size in (8, 1024, 1500, 2048, 3000, 4096, 5000, 8192, 1 << 20)] == [
        *(True, True, True, True, False, False, False, True, True)
    ]
    assert known.wins("broadcast", 8)


def test_what_is_as_fast_as_the_inner_group_stays_there():
    """Another day it is the slower one."""
    assert [Timing("allreduce", 1 << 30, planned, 100.0).won for planned in (99.0, 98.0, 97.0)] == [False, False, True]
    assert not Timing("allreduce", 1 << 30, 90.0, 100.0, 150.0, 140.0).won


def test_a_calibration_comes_back_from_its_file(tmp_path):
    known = Calibration("cpu", 2, ("allreduce of 0123",), (Timing("allreduce", 1024, 5.0, 10.0),))
    known.save(tmp_path / "kept.json")
    assert Calibration.load(tmp_path / "kept.json") == known
