# The commands below make their own virtual environment, install the exact versions of constraints.txt and go.
#   make demo        train a GAT on Infection and see how well its attention explains it
#   make test        lint, types and tests
#   make test-oldest the same tests, without those of pages and packages, with the oldest versions: constraints-oldest.txt;
#                    make test-oldest OLDEST_TESTS="tests/cli tests/models" runs some of them
#   make test-long  tests in a browser and tests of several seconds: packaging, the site, killed runs and sweeps
#   make docs        build the documentation into site/, with every link checked
#   make numbers     measure what README and docs print, where it is missing or old (hours; goes on after a stop), and write it
#                    there; make numbers QUICK=1 (minutes) compares what can be compared to the last digit, and stores nothing
#   make test-slow   tests that take minutes: runs killed at random moments, accuracies on real data

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
OLDEST ?= .venv-oldest

.PHONY: demo test test-oldest test-long test-slow numbers docs install clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# The demo, and `attree explain`, `serve` and `sweep` after it; the developers' tools come with the other commands.
demo: $(VENV)/demo
	$(BIN)/attree fit --config infection

$(VENV)/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $@

test: install
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2

$(OLDEST)/installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --constraint constraints-oldest.txt --editable ".[dev]"
	touch $@

# Browsers, the wheel and the documentation do not depend on these versions.
OLDEST_TESTS ?= tests --ignore=tests/report/page --ignore=tests/test_distribution.py --ignore=tests/test_docs.py \
	--ignore=tests/test_notebook.py
test-oldest: $(OLDEST)/installed
	OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest --numprocesses 2 $(OLDEST_TESTS)

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

numbers: install
	$(BIN)/python benchmarks/measure.py $(if $(QUICK),--quick)

test-long: install
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 -m long

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

clean:
	rm -rf $(VENV) $(OLDEST) build dist site src/*.egg-info
