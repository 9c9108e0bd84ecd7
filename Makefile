# Each target makes the environment it needs: .venv, with the tacit command in it. Python 3.11 and make are enough.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench

demo: $(READY)  ## train on embedded data, split over 100 clients
	$(BIN)/tacit run fedavg

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest -q

lint: $(READY)  ## style, types, and who may import whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## speed and memory, beside other frameworks
	$(BIN)/python benchmarks/run.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
