"""Constants of the cost model, found again from measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.graph.costs import Work
from loadmaster.models.graph.device import graph_hardware
from loadmaster.models.graph.fitting import fitted

H100 = graph_hardware("h100")
TRUTH = replace(
    H100,
    dram_gbps=1_500.0,
    l2_gbps=9_000.0,
    matrix_tflops=(H100.matrix_tflops[0], 40.0),
    made_per_us=20_000.0,
    step_us=1.5,
    launch_us=4.0,
)
KERNELS = [
    *(Work(n * 1e6, n * 1e6, 0) for n in (0.001, 20.0, 300.0, 900.0)),
    *(Work(n * 1e5, n * 1e7, 0) for n in (20.0, 300.0, 900.0)),
    *(Work(0.0, 0.0, 0, n * 1e9) for n in (1.0, 7.0, 30.0)),
    *(Work(0.0, 0.0, 0, 1e6, made=n * 1e6) for n in (1.0, 5.0, 40.0)),
    *(Work(1e3, 1e3, 0, steps=n) for n in (8, 16, 64)),
    *(Work(1e3, 1e3, 0, launches=n) for n in (2, 3, 5)),
] * 10
NAMES = ("dram_gbps", "l2_gbps", "made_per_us", "step_us", "launch_us")


def test_constants_are_found_again_from_measured_times() -> None:
    found = fitted(H100, [(work, work.time_us(TRUTH, 4)) for work in KERNELS], 4, "mine")
    assert found.name == "mine"
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.03), name
    assert found.matrix_tflops == (H100.matrix_tflops[0], pytest.approx(40.0, rel=0.03))


def test_a_kernel_that_the_model_gets_wrong_does_not_spoil_the_rest() -> None:
    measured = [(work, work.time_us(TRUTH, 4)) for work in KERNELS]
    measured[1] = (measured[1][0], 20.0 * measured[1][1])
    found = fitted(H100, measured, 4, "mine")
    assert found.dram_gbps == pytest.approx(1_500.0, rel=0.1)


def test_constants_that_no_kernel_depends_on_stay_as_they_were() -> None:
    kernels = [Work(n * 1e6, n * 1e6, 0) for n in (1.0, 20.0, 300.0)]
    found = fitted(H100, [(work, work.time_us(TRUTH, 4)) for work in kernels], 4, "mine")
    assert (found.matrix_tflops, found.made_per_us) == (
        (H100.matrix_tflops[0], pytest.approx(H100.matrix_tflops[1])),
        pytest.approx(H100.made_per_us),
    )


def test_a_fit_without_kernels_is_refused() -> None:
    for measured in ([], [(Work(1.0, 1.0, 0), 0.0)]):
        with pytest.raises(InputError, match="kernels with times above 0"):
            fitted(H100, measured, 4, "mine")
