# The commands of this project. Everything happens in .venv; what is installed is pinned in constraints.txt.
#   make up           install and run the daemon in the foreground
#   make test         check, then fast tests, real servers and coding agents, and the official conformance suite
#   make check        lint, format, types, import layers, and that nothing gained is lost (tools/guard.py)
#   make conformance  the official MCP conformance suite through the gateway
#   make bench        what a call costs, side by side
#   make walk         the way of a call and of a list through the code
#   make soak         the tests at their full sizes
#   make clean        remove what the above made here

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
# A little more than a small machine has cores: the tests wait for processes as much as they work.
WORKERS ?= 3
ROOT_TESTS := $(wildcard tests/test_*.py)

.NOTPARALLEL:
.PHONY: up test check unit integration conformance bench walk soak clean

up: $(VENV)/.installed
	@exec $(BIN)/toolcrib up

test: check unit integration conformance

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/guard.py

unit: $(VENV)/.installed-dev
	$(PYTEST) -q -n $(WORKERS) tests/unit $(ROOT_TESTS) -m "not slow"

integration: $(VENV)/.installed-dev
	@$(BIN)/python tests/parts/fleet.py
	$(PYTEST) -q -n $(WORKERS) --dist worksteal tests/integration tests/features tests/parts
	$(PYTEST) -q tests/unit $(ROOT_TESTS) -m slow

conformance: $(VENV)/.installed-dev
	@$(BIN)/python tests/parts/fleet.py node conformance conformance-legacy
	$(PYTEST) -q tests/conformance

bench: $(VENV)/.installed-dev
	$(BIN)/python bench/run.py

walk: $(VENV)/.installed-dev
	@$(BIN)/python tools/walk.py

soak: $(VENV)/.installed-dev
	TOOLCRIB_TEST_SIZES=full $(MAKE) integration

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@python=$$(tools/python) && echo "Making $(VENV) with $$python" && "$$python" -m venv $(VENV)

# The two stamps know what was installed: with their sources unchanged nothing is installed again.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Toolcrib"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed tools/dev_requirements.py
	@echo "Installing what the tests need"
	@$(BIN)/python tools/dev_requirements.py > $(VENV)/dev-requirements.txt
	@$(PIP) --requirement $(VENV)/dev-requirements.txt
	@touch $@
