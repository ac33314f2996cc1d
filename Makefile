# Two commands matter: make demo, make test. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO ?= demo

.PHONY: help demo test check contracts clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1: \2/p' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,dev]'
	@touch $@

demo: $(STAMP) ## start the mesh on the flights example and print real predictions
	@test -e $(DEMO)/mortise.toml || $(BIN)/mortise init $(DEMO) --example flights
	@$(BIN)/mortise status --home $(DEMO) >/dev/null 2>&1 || $(BIN)/mortise start --home $(DEMO) --detach
	@$(BIN)/python examples/flights/client.py --home $(DEMO)
	@echo "The mesh goes on running. Stop it with: $(BIN)/mortise stop --home $(DEMO)"

check: $(STAMP) ## format, lint, types, import rules, architecture, contract and unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/architecture tests/contracts tests/unit

test: check ## everything: real processes, real sockets, real kills
	$(BIN)/pytest tests --ignore tests/architecture --ignore tests/contracts --ignore tests/unit

contracts: $(STAMP) ## write schemas, golden frames and the SDK's table anew from contracts/
	$(BIN)/python -m contracts.generate

clean: ## remove what was installed and built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
