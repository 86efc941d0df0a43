# Everything a newcomer needs: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu bench lint format types docs docs-serve clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "cbsa needs Python >= 3.11, but $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp an install: set-up is a matter of minutes the first time and of nothing the second.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing cbsa into $(VENV) (PyTorch is large: a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing cbsa[dev] into $(VENV) (PyTorch is large: a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed ## train a small CBT on embedded digits on the CPU, and write a page about it
	$(BIN)/cbsa demo --out outputs/demo

test: lint types ## lint, types and all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-gpu: $(VENV)/.installed-dev ## the tests that run on a GPU, on a machine that has one
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
	  || { echo "make test-gpu needs an NVIDIA GPU, and PyTorch sees none on this machine. make test runs all else."; exit 1; }
	$(BIN)/python -m pytest -m gpu

# BENCH: folder of the results; JOBS: rows that are compiled at once, each with the memory of a model.
BENCH ?= outputs/bench
JOBS  ?= 8
bench: $(VENV)/.installed ## every benchmark on this machine, best a GPU; stopped, it goes on where it was
	$(BIN)/cbsa bench ops --jobs $(JOBS) --out $(BENCH)
	$(BIN)/cbsa bench models --jobs $(JOBS) --out $(BENCH)
	$(BIN)/cbsa reproduce table-throughput --jobs $(JOBS) --out $(BENCH)
	$(BIN)/cbsa bench decoders --jobs $(JOBS) --out $(BENCH)
	$(BIN)/cbsa bench adapt --jobs $(JOBS) --out $(BENCH)
	$(BIN)/cbsa bench scale --jobs $(JOBS) --out $(BENCH)
	$(BIN)/python benchmarks/probe_overhead.py --out $(BENCH)/probe_overhead.json

lint: $(VENV)/.installed-dev ## ruff: lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## mypy, strict, over src
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	@echo "Installing cbsa[docs] into $(VENV) (PyTorch is large: a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@ $(VENV)/.installed

# Material announces its successor at every build: docs/dependencies.md says so once.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.installed-docs ## build the documentation site into site/, to be opened from disk
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs ## show the documentation site while you write it
	$(BIN)/mkdocs serve

clean: ## remove the environment, caches and what was built; runs in outputs/ stay
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
