# Everything runs from a virtual environment in .venv; `make` alone lists the targets.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.installed-demo
SOAK := $(VENV)/.installed-soak
PYTHON ?= $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null || echo python3)
WORKERS ?= 2
# More arguments, for pytest or the demo: make test ARGS="-k salt", make demo ARGS="--seeds 5"
ARGS ?=

# One thread a worker, so that workers do not fight over cores; tests never reach for the network.
PYTEST = OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

define INSTALL
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt --build-constraint constraints.txt -e
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs format check soak clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(STAMP)  ## create .venv and install the library with its test and lint tools

$(BIN)/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot create virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) . --group dev
	@touch $@ $(DEMO)

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[demo]'
	@touch $@

$(SOAK): $(STAMP)
	$(INSTALL) . --group soak
	@touch $@

demo: $(DEMO)  ## compare five methods on a small made-up task: about two minutes, no network, no GPU
	$(BIN)/stackelberg demo $(ARGS)

test: setup  ## run the tests
	$(PYTEST) $(ARGS)

soak: $(SOAK)  ## run the tests that are too long for `make test`
	$(PYTEST) -m soak $(ARGS)

lint: setup  ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## apply ruff's fixes and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## build the documentation in build/docs; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

check: lint docs test  ## lint, documentation and tests

clean:  ## remove caches and build outputs; .venv stays
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
