"""The loader gives each seed its batch, in order, with its features; samplers that fail, loops that end early."""

from __future__ import annotations

import threading

import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph import FeatureLoader, HotRows, unified

NODES = 50
FEATURES = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(NODES) * 10
SEEDS = torch.arange(0, NODES, 2)


def sample(seeds):
    """Each seed and the node behind it."""
    return {"of": seeds.clone()}, torch.cat([seeds, seeds + 1])


def loader(features=FEATURES, labels=LABELS, sampler=sample, **options):
    return FeatureLoader(SEEDS, sampler, features, labels, **{"batch_size": 4, "shuffle": False} | options)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("feature-loader")]


@pytest.mark.parametrize("prefetch", [1, 2, 5, 100])
def test_batches_come_in_order_with_their_rows(prefetch):
    table = unified(FEATURES, device="cpu")
    for features in (FEATURES, table, HotRows(table, torch.tensor([3, 4]))):
        batches = list(loader(features, unified(LABELS, device="cpu"), prefetch=prefetch))
        assert torch.equal(torch.cat([b.seeds for b in batches]), SEEDS)
        for batch in batches:
            assert torch.equal(batch.blocks["of"], batch.seeds)
            assert torch.equal(batch.features, FEATURES[torch.cat([batch.seeds, batch.seeds + 1])])
            assert torch.equal(batch.labels, LABELS[batch.seeds])
    assert not threads()


def test_length_is_the_number_of_batches():
    for drop_last, lengths in ((False, [4] * 6 + [1]), (True, [4] * 6)):
        made = loader(drop_last=drop_last)
        assert [b.seeds.numel() for b in made] == lengths and len(made) == len(lengths)
    assert list(FeatureLoader(SEEDS[:0], sample, FEATURES)) == []


def test_epochs_are_shuffled_the_same_way_under_the_same_generator():
    runs = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        noise = torch.Generator().manual_seed(6)

        def noisy(seeds, noise=noise):
            return None, torch.randint(0, NODES, (3,), generator=noise)

        made = loader(sampler=noisy, shuffle=True, generator=generator)
        runs.append([(b.seeds.tolist(), b.input_nodes.tolist()) for _ in range(2) for b in made])
    assert runs[0] == runs[1]
    first, second = ([s for seeds, _ in runs[0][at : at + 7] for s in seeds] for at in (0, 7))
    assert sorted(first) == sorted(second) == SEEDS.tolist() and first != second


def test_an_exception_of_the_sampler_is_raised_where_its_batch_would_have_come():
    class OddError(Exception):
        pass

    def failing(seeds):
        if 16 in seeds:
            raise OddError("no neighbours")
        return sample(seeds)

    seen = []
    with pytest.raises(OddError, match="no neighbours"):
        for batch in loader(sampler=failing, prefetch=4):
            seen += batch.seeds.tolist()
    assert seen == list(range(0, 16, 2))
    assert not threads()


def test_leaving_early_ends_the_work_ahead():
    sampled = []

    def counting(seeds):
        sampled.append(seeds)
        return sample(seeds)

    for _ in loader(sampler=counting, prefetch=2):
        break
    assert not threads() and len(sampled) <= 3

    def stop():
        for _ in loader(sampler=counting):
            raise KeyError("the step failed")

    with pytest.raises(KeyError):
        stop()
    assert not threads()


def test_sampling_runs_ahead_of_the_trainer():
    """The next batch is sampled while the loop body has not ended: it waits for that in its body."""
    sampled = [threading.Event() for _ in range(7)]

    def telling(seeds):
        sampled[int(seeds[0]) // 8].set()
        return sample(seeds)

    for number, _ in enumerate(loader(sampler=telling, prefetch=2)):
        assert sampled[min(number + 2, 6)].wait(timeout=60)


def test_at_most_so_many_batches_are_made_ahead():
    sampled = []

    def counting(seeds):
        sampled.append(seeds)
        return sample(seeds)

    for number, _ in enumerate(loader(sampler=counting, prefetch=2), start=1):
        assert len(sampled) <= number + 2


def test_features_by_node_type():
    users, items = FEATURES[:NODES], FEATURES + 1

    def typed(seeds):
        return None, {"user": seeds, "item": seeds + 1}

    for batch in loader({"user": users, "item": unified(items, device="cpu")}, sampler=typed):
        assert torch.equal(batch.features["user"], users[batch.seeds])
        assert torch.equal(batch.features["item"], items[batch.seeds + 1])
    with pytest.raises(InputError, match="by type"):
        list(loader({"user": users}, sampler=typed))
    with pytest.raises(InputError, match="by type"):
        list(loader({"user": users}))
    with pytest.raises(InputError, match="no types"):
        list(loader(sampler=typed))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"prefetch": 0}, "prefetch"),
        ({"node_count": NODES + 1}, "does not have one row for each of 51 nodes"),
        ({"labels": LABELS[1:]}, "labels"),
        ({"features": FEATURES[:10], "labels": None}, "does not have"),
    ],
)
def test_what_does_not_fit_is_refused(options, match):
    with pytest.raises(InputError, match=match):
        loader(**options)


def test_seeds_without_labels_are_refused_where_features_have_types():
    with pytest.raises(InputError, match="seeds"):
        FeatureLoader(torch.tensor([NODES]), sample, {"user": FEATURES}, LABELS)


@pytest.mark.parametrize("seeds", [torch.tensor([0.5]), torch.tensor([[1]]), torch.tensor([-1]), torch.tensor([NODES])])
def test_seeds_that_name_no_nodes_are_refused(seeds):
    with pytest.raises(InputError, match="seeds"):
        FeatureLoader(seeds, sample, FEATURES)
