# Each target makes the environment it needs: .venv, with the tacit command in it. Python 3.11 and make are enough.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench

demo: $(READY)  ## standard federated learning, the same with privacy, and FL-TOP-DP, on embedded data of 100 clients
	$(BIN)/tacit run fl-std fl-std-dp fl-top-dp --rounds 100 --set ratio=0.02 epsilon=8 delta=1e-3 \
		--task-set model=digits-mlp --evaluate-every 10

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest -q -n auto

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
