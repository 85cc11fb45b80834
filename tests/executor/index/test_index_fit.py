"""The command that measures and fits: which traces it runs, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.errors import InputError
from loadmaster.executor.index import FragmentedLog, HashTable, SortedArray, fit, native
from loadmaster.executor.index.fit import Trial, read_rows, run, serves, write_rows
from loadmaster.models.index.features import features
from loadmaster.models.index.generators import DISTRIBUTIONS, Mix, make_trace
from loadmaster.models.index.predictor import predict, read_coefficients
from loadmaster.models.index.presets import CANDIDATES

compiled = pytest.mark.skipif(native.library() is None, reason="needs a C++ compiler")


def test_every_distribution_runs_in_every_size_and_mix() -> None:
    wanted = fit.trials(1_000_000, 400_000)
    sizes = sorted({trial.keys for trial in wanted})
    assert sizes[0] == 10_000 and sizes[-1] == 1_000_000
    mixes = {trial.mix for trial in wanted}
    assert {mix.inserts for mix in mixes} >= {0.0, 0.15, 0.5, 0.85, 1.0}
    assert any(mix.scans for mix in mixes) and any(mix.erases for mix in mixes) and any(mix.zipf for mix in mixes)
    run = {(t.distribution, t.keys, t.mix) for t in wanted}
    every = {(d, keys, mix) for d in DISTRIBUTIONS for keys in sizes for mix in mixes}
    assert run <= every and {one for one in every if one[1] <= 100_000} <= run
    assert {(t.distribution, t.keys) for t in wanted} == {(d, keys) for d in DISTRIBUTIONS for keys in sizes}
    assert {(t.keys, t.mix) for t in wanted} == {(keys, mix) for keys in sizes for mix in mixes}
    assert max(trial.operations for trial in wanted) == 400_000
    assert len({trial.seed for trial in wanted}) == len({trial.name for trial in wanted}) == len(wanted)


def test_candidates_and_others_run() -> None:
    first, second = fit.configurations(1), fit.configurations(2)
    assert set(CANDIDATES) < set(first) and first == fit.configurations(1) and first != second


def test_a_trace_runs_on_what_can_serve_it() -> None:
    read, written, scanned = (
        features(make_trace("uniform", 500, 400, mix))
        for mix in (Mix(inserts=0), Mix(erases=0.2, inserts=0), Mix(scans=0.2))
    )
    assert serves(SortedArray(), read) and serves(HashTable(), read)
    assert not serves(SortedArray(), written) and serves(HashTable(), written)
    assert not serves(HashTable(), scanned) and serves(FragmentedLog(), scanned)


def test_rows_come_back_from_their_document() -> None:
    ran = run(Trial("clustered", 600, 500, Mix(inserts=0.4, scans=0.1), 3))
    assert {row.configuration for row in ran.rows} >= {c for c in CANDIDATES if c.ordered and c.writable}
    for row in ran.rows:
        assert row.read_ns is not None and row.write_ns is not None and row.scan_ns is not None
        assert row.key_bytes * (600 + 200) >= 16 * 600
    document = json.loads(json.dumps(write_rows([ran], "here")))
    (back,) = read_rows(document)
    assert (back.trial, back.features) == (ran.trial, ran.features)
    assert back.picture.shape == ran.picture.shape and abs(back.picture - ran.picture).max() < 1e-4
    for row, again in zip(ran.rows, back.rows, strict=True):
        assert (row.group, row.features, row.configuration) == (again.group, again.features, again.configuration)
        assert again.read_ns == pytest.approx(row.read_ns, abs=1e-3)
        assert again.key_bytes == pytest.approx(row.key_bytes, abs=1e-3)
        assert (again.change_ns is None) == (row.change_ns is None)


def test_what_is_no_rows_is_refused() -> None:
    with pytest.raises(InputError, match=r"^schema"):
        read_rows({"schema": "another"})
    broken: tuple[object, ...] = ([{}], [{"trial": {"keys": 3}}], None)
    for traces in broken:
        with pytest.raises(InputError, match=r"^traces"):
            read_rows({"schema": fit.SCHEMA, "traces": traces})


@compiled
def test_the_command_writes_coefficients_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, rows = tmp_path / "predictor.json", tmp_path / "rows.json"
    given = ["-o", str(output), "--rows", str(rows), "--keys", "200", "--operations", "150"]
    assert fit.main(given) == 0
    wanted = fit.trials(200, 150)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == len(wanted) and told[-1].startswith(f"{len(wanted)}/{len(wanted)} ")
    found = read_coefficients(json.loads(output.read_text()))
    assert "--keys 200" in found.source and str(len(wanted)) in found.source
    ran = read_rows(json.loads(rows.read_text()))
    assert [of.trial for of in ran] == wanted
    for configuration in CANDIDATES:
        assert predict(ran[0].features, configuration, found).read_ns.expected > 0


@compiled
def test_the_command_tells_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main(["--keys", "3"]) != 0
    assert "keys: is less than" in capsys.readouterr().err
    assert fit.main(["-o", str(tmp_path / "nowhere" / "predictor.json")]) != 0
    assert "does not exist" in capsys.readouterr().err
    assert fit.main(["-o", str(tmp_path / "predictor.json"), "--rows", str(tmp_path)]) != 0
    assert "rows: is a folder" in capsys.readouterr().err


def test_it_needs_the_compiled_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    with pytest.raises(InputError, match=r"^implementation"):
        fit.measured(1000, 1000)
