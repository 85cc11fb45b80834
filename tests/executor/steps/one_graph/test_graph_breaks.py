"""Steps that Dynamo cannot follow: logging is passed over, other breaks name the place, and whose it is."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings

import pytest
import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor import capture
from loadmaster.executor.steps.one_graph import graph_breaks

logger = logging.getLogger(__name__)
BATCH = (torch.ones(3, 4),)


class Logging(nn.Module):
    def __init__(self, say):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.say = say

    def forward(self, x):
        self.say("a layer of %s", "four")
        return self.layer(x).sum()


def warning_once(self, *words):
    """As libraries add it to every logger."""
    self.warning(*words)


@pytest.mark.parametrize("name", ["info", "warning", "warning_once"])
def test_a_model_that_logs_is_captured(name, monkeypatch, caplog):
    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    silent = Logging(lambda *_: None)
    expected = capture(silent, BATCH, hardware="cpu")

    class Says(Logging):
        def forward(self, x):
            getattr(logger, name)("a layer of %s", "four")
            return self.layer(x).sum()

    assert capture(Says(None), BATCH, hardware="cpu").sha256 == expected.sha256
    assert [r for r in caplog.records if r.name == __name__] == []


def test_a_method_of_loggers_that_takes_the_place_of_another_is_passed_over(monkeypatch):
    expected = capture(Logging(lambda *_: None), BATCH, hardware="cpu")
    for replaced in (lambda self, *words: None, warning_once):
        monkeypatch.setattr(logging.Logger, "warning_once", replaced, raising=False)

        class Says(Logging):
            def forward(self, x):
                logger.warning_once("a layer of %s", "four")
                return self.layer(x).sum()

        assert capture(Says(None), BATCH, hardware="cpu").sha256 == expected.sha256


@pytest.mark.parametrize("say", [logging.warning, warnings.warn, print])
def test_functions_that_log_break_no_graph(say):
    class Says(Logging):
        def forward(self, x):
            say(f"a layer of four for {x.shape}")
            return self.layer(x).sum()

    expected = capture(Logging(lambda *_: None), BATCH, hardware="cpu")
    assert capture(Says(None), BATCH, hardware="cpu").sha256 == expected.sha256


LIBRARY = """
from torch import nn

class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return y.sum() if y.sum() > 0 else -y.sum()
"""


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return y.sum() if y.sum() > 0 else -y.sum()


def refused(model):
    with pytest.raises(InputError, match="cannot be traced as one graph") as found:
        capture(model, BATCH, hardware="cpu")
    assert found.value.__suppress_context__, "the tracer's own traceback is shown"
    return found.value


def test_a_break_in_the_users_code_has_the_tracers_hints():
    error = refused(Branching())
    assert "test_graph_breaks.py" in error.problem
    assert "torch.cond" in error.remedy  # Dynamo's hint for branches


def test_a_break_in_a_library_is_not_the_users_to_rewrite(tmp_path, monkeypatch):
    (tmp_path / "routers.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(graph_breaks, "_LIBRARIES", (*graph_breaks._LIBRARIES, str(tmp_path)))
    monkeypatch.delitem(sys.modules, "routers", raising=False)
    routed = importlib.import_module("routers").Routed()
    error = refused(nn.Sequential(routed))
    assert "inside routers, at File" in error.problem
    assert "called from" not in error.problem, "Loadmaster's own frames are not the user's"
    assert "The line is the library's" in error.remedy
    assert "Rewrite" not in error.remedy
