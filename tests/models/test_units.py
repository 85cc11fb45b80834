"""Sizes and budgets as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.kind import Limit
from loadmaster.models.kinds import limit_of, read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.models.units import (
    bytes_of,
    parse_bytes,
    parse_fraction,
    show_at_least,
    show_bytes,
    show_cost,
    show_share,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("5368709120", 5_368_709_120),
        ("5GiB", 5_368_709_120),
        (" 5 GiB ", 5_368_709_120),
        ("1.5KiB", 1536),
        ("800MB", 800_000_000),
        ("2kB", 2000),
        ("7B", 7),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text, "--budget") == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-5GiB", "5 gigs", "5e9", "1,5GiB", "0", "0.2B", "nan", "inf", "٣GiB", "9" * 30]
)
def test_bad_sizes_name_the_field(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes(text, "--budget")
    assert caught.value.field == "--budget"
    assert caught.value.remedy


@pytest.mark.parametrize(("text", "meant"), [("5gib", "5GiB"), ("800mb", "800MB"), ("3KB", "3kB")])
def test_the_wrong_letter_case_is_told_what_to_write(text: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"Write {meant}"):
        parse_bytes(text, "--budget")


def test_a_share_is_of_the_unconstrained_peak() -> None:
    problem = read_problem(chain(4, 100))
    # By hand: when the loss goes backward there are the four results and the gradient that it makes.
    assert limit_of("memory").value("100%", problem, "--budget") == 4 * 100 + 100
    assert limit_of("memory").value("50%", problem, "--budget") == (4 * 100 + 100) // 2


@pytest.mark.parametrize("text", ["0%", "-5%", "%", "half%", "1e3%", "1001%", "10000%"])
def test_bad_shares(text: str) -> None:
    with pytest.raises(InputError):
        limit_of("memory").value(text, read_problem(chain(4, 100)), "--budget")


@pytest.mark.parametrize("size", [0, -1, "0", "0GiB", "-1"])
def test_no_bytes_and_less_than_none_are_no_budget(size: int | str) -> None:
    with pytest.raises(InputError) as caught:
        limit_of("memory").read(size, "--budget")
    assert (caught.value.field, caught.value.value) == ("--budget", size)
    assert "Give" in caught.value.remedy


def test_no_messages_can_be_asked_for_and_less_than_none_cannot() -> None:
    messages = Limit("messages", "messages", "messages", "messages", "a:b", "all", "a:b")
    assert messages.read(0, "--messages") == messages.read("0", "--messages") == 0
    with pytest.raises(InputError, match=r"--messages: is less than 0 \(found -1\)"):
        messages.read(-1, "--messages")


@pytest.mark.parametrize("text", ["50%", "5 gigs", "-1", ""])
def test_a_size_alone_has_nothing_to_be_a_share_of(text: str) -> None:
    with pytest.raises(InputError) as caught:
        bytes_of(text, "kept_bytes")
    assert (caught.value.field, caught.value.value) == ("kept_bytes", text)
    assert "as in 5GiB" in caught.value.remedy
    assert ("a share" in caught.value.problem) == ("%" in text)
    assert bytes_of("6 GiB", "kept_bytes") == bytes_of(6 << 30, "kept_bytes") == 6 << 30


@given(st.integers(1, 2**50))
def test_shown_sizes_read_back_within_their_digits(size_bytes: int) -> None:
    again = parse_bytes(show_bytes(size_bytes), "shown")
    assert abs(again - size_bytes) <= 0.006 * size_bytes


@given(st.integers(1, 2**50))
def test_a_least_size_suffices_when_it_is_given_back(size_bytes: int) -> None:
    again = parse_bytes(show_at_least(size_bytes), "shown")
    assert size_bytes <= again <= 1.011 * size_bytes


def test_shown_costs() -> None:
    assert show_cost(1_023_420.0, "us") == "1023 ms"
    assert show_cost(12_345_678.0, "us") == "12.35 s"
    assert show_cost(12.5, "us") == "12.50 us"
    assert show_cost(2_500.0, "uj") == "2.500 mJ"
    assert show_cost(0.0, "us") == show_cost(1e-9, "us") == "0 s"
    assert show_share(0.0123) == "1.23 %"
    assert show_share(None) == "unknown"


@pytest.mark.parametrize(
    ("text", "means"),
    [("1%", 0.01), ("0%", 0), ("100 %", 1), ("0.01", 0.01), ("1e-4", 1e-4), (".5", 0.5), ("1", 1)],
)
def test_fractions(text: str, means: float) -> None:
    assert parse_fraction(text, "--gap") == pytest.approx(means)


@pytest.mark.parametrize("text", ["", "%", "101%", "1.01", "-0.1", "-1%", "nan", "inf", "1e999", "a", "1%%", "٣%"])
def test_what_is_no_fraction(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_fraction(text, "--gap")
    assert caught.value.field == "--gap"
    assert "1%" in caught.value.remedy
