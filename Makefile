# Everything sets itself up: a bare machine with Python 3.11+ is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests of one file stay together: they share what is dear to set up.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile
# For the oldest Python that is tested: later ones run these releases too. The hashes are of all platforms.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --python-version 3.11 --python-platform linux \
  --custom-compile-command 'make lock'

.PHONY: demo test test-fast test-oldest lint serve lock docs clean

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

# The oldest PyTorch that pyproject.toml admits, in an environment of its own: a download of some GB.
test-oldest:             ## the executor's ways through the oldest PyTorch that is supported
	test -x $(VENV)-oldest/bin/python || $(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[server,torch,graph]' \
	  'torch==2.11.*' hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist
	$(VENV)-oldest/bin/python -m pytest -q -n 2 --dist loadfile -m "not slow" tests/executor

lint: $(STAMP)           ## style and types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock: $(STAMP)           ## the releases that the image is built from
	$(LOCK) --extra server --output-file deploy/requirements.txt pyproject.toml
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])' \
	  | $(LOCK) --output-file deploy/build-requirements.txt -

docs: $(STAMP)           ## the site of the documentation, in ./site
	$(BIN)/mkdocs build --strict

serve: $(STAMP)
	$(BIN)/loadmaster serve

clean:
	rm -rf $(VENV) $(VENV)-oldest demo .pytest_cache .mypy_cache .ruff_cache site
