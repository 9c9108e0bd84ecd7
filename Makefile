# Each target first creates what it needs of .venv: `demo` Tacit alone, the others also the tools of development.
# Python 3.11 and make suffice.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --require-virtualenv
BASE := $(VENV)/.base
READY := $(VENV)/.ready
# The backlog of experiments pauses while a command after this runs. Tests and benchmarks pause it themselves.
BUSY := $(BIN)/python experiments/busy.py
# Tests start many interpreters: keep what is compiled.
# Neighbouring tests stay in one process, which makes what they share once; one that is done takes over from the other.
# Scripts of experiments import what is beside them.
SCRIPTS := experiments:experiments/frontier:experiments/geyer:experiments/records
# Some wait for processes that they started: half as many processes again as there are cores.
TEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $$(( ($$(nproc) * 3 + 1) / 2 )) --dist worksteal

.PHONY: help demo test laws campaign lint catalogue docs wheel coverage bench

help:  ## print this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /: /'

demo: $(BASE)  ## train on the embedded digits, split over 100 clients, without and with privacy (half a minute)
	@echo "Loading PyTorch, then training two methods for 100 rounds each: about half a minute. Progress follows."
	$(BIN)/tacit run fl-std fl-top-dp --rounds 100 --set ratio=0.02 epsilon=8 delta=1e-3 \
		--task-set model=digits-mlp --evaluate-every 20
	@echo "Next: tacit card fl-top-dp (who sees what), tacit run --help, docs/guides/own-data.md (your own data and model)."

test: $(READY)  ## run the test suite, with a part of every law that each commit chooses anew
	$(TEST)

laws: $(READY)  ## run the test suite with every law over the whole catalogue
	$(TEST) --scale laws

campaign: $(READY)  ## run all laws, every command of the documents and far more random trials (hours)
	$(TEST) --scale campaign

lint: $(READY)  ## check style, types and the direction of imports
	$(BUSY) $(BIN)/ruff check
	$(BUSY) $(BIN)/ruff format --check
	$(BUSY) $(BIN)/mypy
	MYPYPATH=$(SCRIPTS) $(BUSY) $(BIN)/mypy --allow-untyped-calls --implicit-reexport experiments
	$(BUSY) $(BIN)/lint-imports

catalogue: $(READY)  ## write the catalogue of methods, after a change of their names, arguments or summaries
	$(BIN)/python -m tacit.methods.cataloguing

docs: $(READY)  ## build the site into build/site; open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BUSY) $(BIN)/mkdocs build --strict --quiet

wheel: | $(BIN)/python  ## build the wheel that others install, in dist/
	@rm -rf build/lib  # what an earlier build left would be packed, too
	$(PIP) wheel --no-deps --wheel-dir dist .

coverage: $(READY)  ## run the test suite and list what it does not reach; slower than `make test`
	@mkdir -p build && rm -f build/coverage*
	$(BIN)/python -m coverage run -m pytest -q -n auto
	@$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

bench: $(READY)  ## measure speed and memory, compared with other frameworks
	$(BIN)/python benchmarks/run.py

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Tacit and PyTorch in $(VENV): about a minute, once."
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(READY): $(BASE)
	@echo "Installing the tools of development in $(VENV): a few minutes, once."
	@$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@
