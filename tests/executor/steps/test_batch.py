"""What counts as a batch: tuples are positional, mappings keywords, by what the model's forward takes."""

from __future__ import annotations

import functools
from collections import UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import Batch, Forward, Parameters, batch_of, for_model
from loadmaster.executor.steps.step_graph import tensors


class Model(nn.Module):
    """With the forward it is given."""

    def __init__(self, forward):
        super().__init__()
        self.forward = forward


def by_name(ids, mask=None, *, labels=None):
    """Inputs with names, as transformers have them."""


def one_input(x):
    """An ordinary module."""


def one_of_several(batch, factor):
    """A module that takes a mapping as one input."""


def named_and_more(ids, **more):
    """With names of its own, and others passed on."""


def anything(*args, **kwargs):
    """A wrapper."""


@functools.wraps(by_name)
def decorated(*args, **kwargs):
    """Takes more than it says."""
    kwargs.pop("return_dict")


def test_tuples_are_positional_and_mappings_are_keywords():
    pair = namedtuple("pair", "x y")
    for positional in ((1, 2), [1, 2], pair(1, 2)):
        assert batch_of(positional).args == (1, 2) and not batch_of(positional).kwargs
    for keywords in ({"x": 1}, UserDict(x=1)):
        assert batch_of(keywords).args == () and batch_of(keywords).kwargs == {"x": 1}
    known = Batch((1,))
    assert batch_of(known) is known


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.ones(2, 3), r"batch: is a tensor \(found \(2, 3\)\). Give a tuple"),
        (np.ones(3), "batch: is neither a tuple nor a mapping .found 'ndarray'"),
        ("words", "neither a tuple nor a mapping .found 'str'"),
        (None, "neither a tuple nor a mapping .found 'NoneType'"),
        ({0: 1}, r"key that is no name \(found 0\).*give \(mapping,\)"),
    ],
)
def test_what_is_no_batch_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        batch_of(given)


@pytest.mark.parametrize(
    ("forward", "keys", "is_call"),
    [
        (by_name, "ids mask", True),
        (by_name, "ids labels", True),
        (by_name, "ids token_type_ids", True),  # the call says what is too many
        (by_name, "mask", False),  # what forward needs is missing
        (by_name, "", False),
        (decorated, "ids return_dict", True),
        (one_input, "x", True),
        (one_input, "x y", False),
        (one_input, "y", False),
        (one_of_several, "x y", False),
        (named_and_more, "ids other", True),
        (named_and_more, "other", False),
        (anything, "other", True),
    ],
)
def test_a_lone_mapping_is_the_keywords_that_forward_names(forward, keys, is_call):
    mapping = UserDict(dict.fromkeys(keys.split(), 1))
    takes = Parameters.of(Model(forward))
    alone, paired = for_model((mapping,), takes, has_loss=False), for_model((mapping, 2), takes, has_loss=True)
    if is_call:
        assert (alone.args, alone.kwargs) == ((), dict(mapping))
        assert (paired.args, paired.kwargs) == ((2,), dict(mapping))
        assert [name for name, _ in paired.named_leaves()] == ["[1]", *keys.split()]
    else:
        assert (alone.args, paired.args) == ((mapping,), (mapping, 2))
        assert not alone.kwargs and not paired.kwargs
    # Resolved once, or twice: a wrapper around the step passes on what it was given.
    assert for_model(paired, takes, has_loss=True).args == paired.args


def test_a_mapping_and_more_inputs_stay_as_they_are():
    takes = Parameters.of(Model(by_name))
    for has_loss, given in ((False, ({"ids": 1}, 2)), (True, ({"ids": 1}, 2, 3))):
        assert for_model(given, takes, has_loss=has_loss).args == given
    # With a loss, a mapping alone holds the target, too.
    assert for_model(({"batch": 1},), Parameters.of(Model(one_input)), has_loss=True).kwargs == {"batch": 1}


def test_parameters_are_those_below_the_compiler():
    assert Parameters.of(torch.compile(nn.Linear(2, 2))).names == {"input"}
    assert Parameters.of(Model(min)).any_name  # not written in Python: nobody knows


@dataclass
class Nested:
    deep: torch.Tensor
    none: None = None


def test_leaves_have_names_and_tensors_are_found():
    x, y, z = (torch.ones(n) for n in (1, 2, 3))
    batch = Batch(((x, None),), {"ids": Nested(y), "more": {"z": [z, "word"]}})
    names = ["[0][0]", "[0][1]", "ids.deep", "ids.none", "more['z'][0]", "more['z'][1]"]
    assert [name for name, _ in batch.named_leaves()] == names
    assert [t.numel() for t in tensors(batch)] == [1, 2, 3]
    assert [t.numel() for t in tensors((UserDict(y=y), Nested(x)))] == [2, 1]


def test_a_call_that_forward_cannot_take_is_refused():
    Forward.of(Model(by_name)).expect((1,), {"labels": 2})
    Forward.of(Model(decorated)).expect((), {"ids": 1, "return_dict": False})
    with pytest.raises(InputError, match=r"forward, which takes ids, mask, labels: .*unexpected.*'type'.*\['ids'"):
        Forward.of(Model(by_name)).expect((), {"ids": 1, "type": 2})
    with pytest.raises(InputError, match=r"which takes x: too many positional arguments \(found \['\[0\]', '\[1\]'\]"):
        Forward.of(Model(one_input)).expect((1, 2), {})
    hooked = Model(one_input)
    hooked.register_forward_pre_hook(lambda module, args: args[:1])
    Forward.of(hooked).expect((1, 2), {})  # the hook drops one
