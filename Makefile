# Everything here works from a fresh clone with make and Python 3.11+, and in a path with spaces:
# paths are relative, and tools run as modules of .venv/bin/python, never through a script's shebang.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
SET_UP := .venv/.set-up

# The first interpreter that really runs (a version manager's shim may only say that it cannot) and
# is new enough. Another one: make setup PYTHON=/path/to/python
CANDIDATES := python3.13 python3.12 python3.11 python3
PROBE := import sys; print(sys.executable) if sys.version_info >= (3, 11) else sys.exit(1)
PYTHON ?= $(shell for name in $(CANDIDATES); do "$$name" -c '$(PROBE)' 2>/dev/null && break; done)

# The longest files first, a few at a time, each file in one process.
SIDE_BY_SIDE := -n 4 --dist loadfile --no-loadscope-reorder

# Handed to the tool behind a target: make test ARGS="-k embedded -x"
ARGS ?=

# A virtual environment that was moved or copied here, or whose Python is gone, is made anew.
ifneq ($(shell test "$$(cat $(SET_UP) 2>/dev/null)" = "$$(pwd)" && $(PY) -c 'print("usable")' 2>/dev/null),usable)
.PHONY: $(SET_UP)
endif

FROM_LOCK := --quiet --require-hashes -r requirements.lock
THE_PROJECT := --quiet --no-deps --no-build-isolation -e .
WITH_UV = rm -rf .venv && uv venv --quiet --python '$(PYTHON)' .venv && \
  uv pip install --python $(PY) $(FROM_LOCK) && uv pip install --python $(PY) $(THE_PROJECT)
PIP := $(PY) -m pip --disable-pip-version-check
WITH_PIP = rm -rf .venv && '$(PYTHON)' -m venv .venv && \
  $(PIP) install $(FROM_LOCK) && $(PIP) install $(THE_PROJECT)

.PHONY: help setup run test test-long test-all test-types test-clients test-peers chaos-short chaos check format count bench bench-peers lock clean

help: ## Say what there is
	@echo 'Usage: make TARGET'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile

setup: $(SET_UP) ## Make .venv with what requirements.lock names; done again only when that changes
	@echo ".venv is ready: $$($(PY) --version)"

$(SET_UP): requirements.lock pyproject.toml
	@echo "Setting up .venv from requirements.lock ..."
	@'$(PYTHON)' -c '$(PROBE)' >/dev/null 2>&1 || { \
	  echo "toolpool needs Python 3.11 or newer, and none of these is: $(or $(PYTHON),$(CANDIDATES))." >&2; \
	  echo "Install it, or name one: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@if uv --version >/dev/null 2>&1; then \
	  ( $(WITH_UV) ) || { echo "uv could not do it; trying again with pip ..." >&2; $(WITH_PIP); }; \
	else $(WITH_PIP); fi
	@pwd > $(SET_UP)

run: $(SET_UP) ## Do the main job: run the example turns on an embedded server and workers
	@mkdir -p .run
	@$(PY) -m toolpool run examples/turns.jsonl --out .run/answers.jsonl \
	  --tools toolpool.workers.tools --tools examples/tools.py --workspace-copy examples/workspace $(ARGS)

test: $(SET_UP) ## Run the unit and the shorter integration tests, a few files at a time
	@$(PY) -m pytest -m "not long" $(SIDE_BY_SIDE) $(ARGS)

test-long: $(SET_UP) ## Run the integration tests that start many processes or wait for outages
	@$(PY) -m pytest -m long $(SIDE_BY_SIDE) $(ARGS)

test-all: $(SET_UP) ## Run every test, those that kill servers in a loop as well
	@$(PY) -m pytest tests $(ARGS)

test-types: $(SET_UP) ## Check the public types with pyright, and messages with the SDKs, each in its own environment
	@$(PY) -m pytest tests/typing $(ARGS)

test-clients: $(SET_UP) ## Dispatch beside other versions of Celery, redis-py and pydantic, each in its own environment
	@$(PY) -m pytest tests/clients $(ARGS)

test-peers: $(SET_UP) ## Report to a real server that takes what Sentry takes, in an environment of its own
	@$(PY) -m pytest tests/peers $(ARGS)

chaos-short: $(SET_UP) ## Kill, freeze and cut off everything for a few minutes; nothing may be lost
	@$(PY) -m tests.chaos --short --hooks --jobs 2 $(ARGS)

chaos: $(SET_UP) ## The same for an hour or so, and the long form of the ledger's model test
	@$(PY) -m pytest tests/chaos
	@$(PY) -m tests.chaos --long --jobs 2 $(ARGS)

check: $(SET_UP) ## Hold the code to its rules: lint, format, types, imports, and what is shipped
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -c 'from importlinter.cli import lint_imports_command as main; main()'
	@$(PY) -m pytest tests/manifest

format: $(SET_UP) ## Format the code, and mend what the linter can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

count: $(SET_UP) ## Count function calls, commands and bytes a call (hold them against the bounds: ARGS=--check)
	@$(PY) -m benchmarks.call_counts $(ARGS)

bench: $(SET_UP) ## Measure throughput and latency beside bare Celery
	@$(PY) -m benchmarks $(ARGS)

bench-peers: $(SET_UP) ## Measure beside other task queues, in .venv-peers (some minutes; their packages are large)
	@$(PY) -m benchmarks.peers $(ARGS)

lock: ## Resolve pyproject.toml into requirements.lock again (needs uv; newer versions: ARGS=--upgrade)
	@uv --version >/dev/null 2>&1 || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	@uv pip compile --no-config --quiet --universal --python-version 3.11 --extra dev \
	  --generate-hashes --no-strip-extras --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --output-file requirements.lock $(ARGS) pyproject.toml

clean: ## Remove .venv and everything else that was made here
	@rm -rf .venv .venv-peers .run dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
