# Each target does its own set-up: a virtual environment in .venv from the lock in deploy/requirements.
# On a machine where the package index offers a CUDA build of torch first, name a CPU index:
#   make demo TORCH_PIP_ARGS="--index-url <CPU wheel index>"
SHELL := /bin/bash
PYTHON ?= python3
TORCH_PIP_ARGS ?=
SEED ?= 0
VENV := .venv
BIN := $(VENV)/bin
LOCK := deploy/requirements/cpu.lock
STAMP := $(VENV)/.installed
CLIENTS := .clients
CLIENTS_LOCK := deploy/requirements/clients.lock
CLIENTS_STAMP := $(CLIENTS)/.installed

# Two cores carry server, learner and sandbox: one thread each.
export OMP_NUM_THREADS := 1
export OMP_WAIT_POLICY := PASSIVE
export DS_ACCELERATOR := cpu
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: demo test lint up clean help install clients

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

install: $(STAMP) ## make the virtual environment

$(STAMP): $(LOCK) deploy/requirements/torch-cpu.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v[:2] == (3, 11) else f"Python 3.11 is needed (the lock is made for it); {sys.executable} is {v[0]}.{v[1]}. Set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-deps $(TORCH_PIP_ARGS) -r deploy/requirements/torch-cpu.lock
	$(BIN)/pip install -q --no-deps -r $(LOCK)
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@touch $@

clients: $(CLIENTS_STAMP) ## other people's agents, which the tests point at the service

# A folder beside the virtual environment: they want other versions of packages that SGLang pins.
$(CLIENTS_STAMP): $(CLIENTS_LOCK) | $(STAMP)
	rm -rf $(CLIENTS)
	$(BIN)/pip install -q --no-deps --no-compile --target $(CLIENTS) -r $(CLIENTS_LOCK)
	@touch $@

demo: $(STAMP) ## the whole loop in one go: serve, train, swap, change a tool, adapt, roll back (SEED=n)
	$(BIN)/online-agent demo --seed $(SEED)

up: $(STAMP) ## start everything on this machine and keep it running (Ctrl-C drains)
	$(BIN)/online-agent up

# Unit tests in two processes, file by file; the others start servers that want both cores. Both parts run to their end.
test: $(STAMP) $(CLIENTS_STAMP) ## all tests
	@failed=0; trap 'exit 130' INT; \
	$(BIN)/python -m pytest tests/unit -n 2 --dist loadfile --no-loadscope-reorder || failed=1; \
	$(BIN)/python -m pytest --ignore tests/unit || failed=1; \
	exit $$failed

lint: $(STAMP) ## ruff, mypy --strict and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## remove the virtual environment, caches and var/
	rm -rf $(VENV) $(CLIENTS) var .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
