# Everything a newcomer needs: `make train`, `make test`, `make check`. Only Python >= 3.11 and make are expected.
#
# TORCH         which of PyTorch's builds: auto (CUDA where there is a driver), cpu, cu130, …; pip: as pip is configured
# EXPERIMENT    what `make train` trains (a name in compose/experiments/, or a TOML file)
# ARGS          more for `seedbed train`, e.g. ARGS="--seconds 30 run.seed=2"
# WORKERS       how many processes `make test` runs, at most 4; one more than there are processors, as many tests wait

PYTHON ?= python3
VENV ?= .venv
TORCH ?= auto
EXPERIMENT ?= cartpole
ARGS ?=
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install train test test-openenv test-slow test-learning test-chaos test-compose test-kubernetes test-slurm check docs format bench clean

help:  ## Show the targets.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY)  ## Create .venv with pinned dependencies.

$(READY): pyproject.toml constraints.txt compose/install_torch.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "seedbed needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $(VENV), once; this takes a few minutes and some GB."
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "No virtual environment: install Python's venv module (Debian, Ubuntu: apt install python3-venv)."; exit 1; }
	@$(PIP) install --quiet -c constraints.txt setuptools
	@compose/install_torch.sh $(BIN)/python "$(TORCH)"
	@$(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[torch,atari,monitor,export,adapters,wandb,dev,docs]'
	@touch $@
	@echo "Installed."

train: $(READY)  ## Train CartPole (or EXPERIMENT=…) with all services, live in the terminal.
	@$(BIN)/seedbed train $(EXPERIMENT) $(ARGS)

test: $(READY)  ## Run the tests that take seconds.
	@$(BIN)/python -m pytest -q --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-openenv: .venv-openenv/.ready  ## Run the OpenEnv adapter's tests; its client brings 80 packages, so it has an environment of its own.
	@.venv-openenv/bin/python -m pytest -q tests/services/test_openenv.py

.venv-openenv/.ready: pyproject.toml services/openenv/requirements.txt
	@$(PYTHON) -m venv .venv-openenv
	@.venv-openenv/bin/pip --disable-pip-version-check install --quiet -e . -r services/openenv/requirements.txt pytest pytest-timeout
	@touch $@

test-slow: $(READY)  ## Run those that take minutes: long fuzzing, kill -9 in checkpoints.
	@$(BIN)/python -m pytest -q -m slow --timeout 1800

test-learning: $(READY)  ## Train agents to their thresholds.
	@$(BIN)/python -m pytest -q -m learning --timeout 3600

test-chaos: $(READY)  ## Kill services at random while they train.
	@$(BIN)/python -m pytest -q -m chaos --timeout 3600

test-compose: $(READY)  ## Build the images and try the deployment by docker-compose; skipped where no engine is.
	@$(BIN)/python -m pytest -q -m "compose and not chaos" --timeout 1800 tests/compose

test-kubernetes: $(READY)  ## Run the manifests in a real cluster on this machine; tests/kubernetes/build.sh says what it needs.
	@$(BIN)/python -m pytest -q -m kubernetes --timeout 3600 tests/kubernetes

test-slurm: $(READY)  ## Run the batch script on Slurm's daemons; skipped where they cannot be started (they need root).
	@$(BIN)/python -m pytest -q -m slurm --timeout 1800 tests/slurm

check: $(READY)  ## Lint, format, types and spelling, and the site's links.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell
	@$(MAKE) --no-print-directory docs

docs: $(READY)  ## Build the site of docs/ into site/; a broken link or anchor is an error.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

format: $(READY)  ## Rewrite the code in the project's format.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY)  ## Measure this machine; one JSON line per benchmark.
	@$(BIN)/seedbed bench

clean:  ## Remove the virtual environment and caches; runs are kept.
	rm -rf $(VENV) .venv-openenv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
