"""Both implementations of the index, for the tests of this room."""

from __future__ import annotations

import pytest

from loadmaster.executor.index import native


@pytest.fixture(scope="session", params=["compiled", "numpy"])
def implementation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "compiled" and native.library() is None:
        pytest.skip("there is no C++ compiler here")
    return name


@pytest.fixture(autouse=True)
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that ask for an implementation get indexes of that one."""
    if "implementation" in request.fixturenames and request.getfixturevalue("implementation") == "numpy":
        monkeypatch.setattr(native, "library", lambda: None)
