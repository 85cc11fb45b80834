"""What the cold start takes from the README."""

from __future__ import annotations

from benchmarks import cold_start


def test_the_readme_goes_from_an_install_to_a_plan_over_http() -> None:
    commands = cold_start.commands()
    assert commands[0].startswith("pip install ")
    assert [command for command in commands if command.endswith("&")] == ["loadmaster serve &"]
    assert commands[-1].startswith("loadmaster plan ") and "--server http://" in commands[-1]
    assert commands[-1].endswith(" -o plan.json")
