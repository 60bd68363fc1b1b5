# What a developer types; `make help` lists it. All of it happens in a virtual environment that make builds itself.
#
#   make test PYTHON=python3.9       with another interpreter (the first time, or after `make clean`)
#   make unit ARGS="-k claim -x"     more words for pytest, or for bench/run.py

PYTHON ?= python3
VENV := .venv
ARGS :=
# Many tests wait for something, so more of them than there are processors run at once.
TESTERS := 4
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help test lint types unit test-all torture scale bench single wheel clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

# The short checks first. Without -j, make keeps this order.
test: single lint types unit ## all that a change needs: ruff, mypy, and the tests but the three long kinds

lint: $(READY) ## ruff
	$(PY) -m ruff check

types: $(READY) ## mypy
	$(PY) -m mypy

unit: single $(READY) ## only the tests
	$(PY) -m pytest -n $(TESTERS) -m "not torture and not scale and not bench" $(ARGS)

test-all: ## the tests on every Python from 3.9 on that this machine has
	$(PYTHON) tools/test_all.py

torture: single $(READY) ## kills, full disks, power cuts, many times over (long)
	$(PY) -m pytest -m torture --timeout 3600 $(ARGS)

scale: single $(READY) ## a million jobs and more (long)
	$(PY) -m pytest -m scale --timeout 3600 $(ARGS)

bench: single $(READY) ## speed, as ratios; wants a quiet machine
	$(PY) bench/run.py $(ARGS)

single: ## dist/spoolctl.py: the whole tool in one readable file
	$(PYTHON) tools/single.py

wheel: $(READY) ## dist/spoolctl-*.whl
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean: ## remove all that make made
	rm -rf .venv .venv-3.* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find spoolctl tests tools bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Made once, and again when pyproject.toml changes. Editable installs need pip 21.3; Python 3.9 can bring an older one.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check 'pip>=21.3'
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
