"""Plans from files and folders: what finds what, and what is refused."""

from __future__ import annotations

import json

import pytest

from loadmaster.errors import InputError
from loadmaster.executor.collective.sources import read_plans
from loadmaster.models import kinds
from tests.executor.collective.planned import planned
from tests.models.collective.tiny import ring
from tests.models.memory.test_memory_checker import three_operators


def write(path, document):
    path.write_text(json.dumps(document))
    return path


def both(problem, plan):
    return {"problem": kinds.write_problem(problem), "plan": kinds.write_plan(plan)}


@pytest.fixture
def made(tmp_path):
    """AllGather for 3 ranks in two files, AllReduce for 3 and for 2 in one file each, and a file of another kind."""
    gather, total, pair = (
        planned(ring(n), what, 48) for n, what in ((3, "allgather"), (3, "allreduce"), (2, "allreduce"))
    )
    write(tmp_path / "problem.json", kinds.write_problem(gather[0]))
    write(tmp_path / "a-plan.json", kinds.write_plan(gather[1]))
    write(tmp_path / "total.json", both(*total))
    write(tmp_path / "pair.json", both(*pair))
    write(tmp_path / "network.json", {"name": "a network", "node_of": [0, 0]})
    return tmp_path, gather, total, pair


def test_a_folder_gives_the_plans_for_so_many_ranks(made):
    folder, gather, total, pair = made
    assert sorted(read_plans(folder, 3), key=str) == sorted([gather, total], key=str)
    assert read_plans(str(folder), 2) == [pair]
    with pytest.raises(InputError, match=r"has no plan for 4 ranks, but for 2, 3 .*Plan for 4 ranks"):
        read_plans(folder, 4)
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no plan for 4 ranks \(found"):
        read_plans(folder / "empty", 4)


def test_files_typed_pairs_and_pairs_of_paths_mix(made):
    folder, gather, total, pair = made
    paths = (folder / "problem.json", str(folder / "a-plan.json"))
    assert read_plans([paths], 3) == [gather]
    assert read_plans([*paths], 3) == [gather]
    assert read_plans([(gather[0], paths[1]), total, folder / "pair.json"], 3) == [gather, total, pair]


def test_what_does_not_belong_together_is_refused_by_name(made, tmp_path):
    folder, gather, total, _ = made
    with pytest.raises(
        InputError, match=f"problem_sha256: of by hand is not that of the problem .*{total[0].sha256[:12]}"
    ):
        read_plans([(total[0], gather[1])], 3)
    with pytest.raises(InputError, match=r"a-plan.json is of none of the problems given"):
        read_plans([folder / "a-plan.json"], 3)
    with pytest.raises(InputError, match="hold no plan"):
        read_plans([folder / "problem.json"], 3)
    with pytest.raises(InputError, match="is no pair of problem and plan"):
        read_plans(gather, 3)
    with pytest.raises(InputError, match="no such file"):
        read_plans(folder / "none.json", 3)
    with pytest.raises(InputError, match="is not JSON"):
        (tmp_path / "broken").write_text("{")
        read_plans(tmp_path / "broken", 3)


def test_documents_of_another_kind_are_refused(made, tmp_path):
    _, gather, _, _ = made
    other = write(tmp_path / "memory.json", kinds.write_problem(three_operators()))
    with pytest.raises(InputError, match=r"problem\.kind: is no collective"):
        read_plans([(other, gather[1])], 3)
    # In a folder it is one of the other files.
    assert len(read_plans(tmp_path, 3)) == 2
