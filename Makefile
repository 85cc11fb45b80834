# Everything sets itself up: a bare machine with Python 3.11+ is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests of one file stay together: they share what is dear to set up.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile

.PHONY: demo test test-fast lint serve clean

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)           ## the main job on real models, end to end
	$(BIN)/loadmaster demo

test: lint               ## everything CI runs
	$(PYTEST)

test-fast: $(STAMP)      ## the fast core
	$(PYTEST) -m "not slow"

lint: $(STAMP)           ## style and types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

serve: $(STAMP)
	$(BIN)/loadmaster serve

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache
