# The commands below make their own virtual environment, install the exact versions of constraints.txt and go.
#   make demo        train a GAT on Infection and see how well its attention explains it
#   make test        lint, types and tests
#   make docs        build the documentation into site/, with every link checked
#   make test-slow   tests that take minutes: runs killed at random moments, accuracies on real data

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow docs install clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install
	$(BIN)/attree fit --config infection

test: install
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
