# Two commands matter: make demo, make test. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
COMPILE := $(BIN)/python -m services.jobs.compile --if-needed
DEMO ?= demo

.PHONY: help demo test check compiled contracts clean serving batching tokens overload fairness bench-peers soak kills fire blocks startup swaps failing restarts starvation fuzz push ledger features mapping train rules split shadow

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1: \2/p' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into .venv: some minutes the first time"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,dev]'
	@touch $@

compiled: $(STAMP) ## compile the hot path: about a minute, again whenever its sources change
	@$(COMPILE) || echo "The hot path runs from source: the same answers, slower. Needed: a C compiler, Python's headers."

demo: compiled ## start the mesh on the flights example and print real predictions
	@test -e $(DEMO)/mortise.toml || $(BIN)/mortise init $(DEMO) --example flights
	@$(BIN)/mortise status --home $(DEMO) >/dev/null 2>&1 || $(BIN)/mortise start --home $(DEMO) --detach
	@$(BIN)/python examples/flights/client.py --home $(DEMO)
	@echo "The mesh goes on running. Stop it with: $(BIN)/mortise stop --home $(DEMO)"

check: $(STAMP) ## format, lint, types, import rules, architecture, contract and unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 tests/architecture tests/contracts tests/unit

test: check compiled ## everything: real processes, real sockets, real kills
	$(BIN)/pytest -n 3 --dist loadfile tests --ignore tests/architecture --ignore tests/contracts --ignore tests/unit

contracts: $(STAMP) ## write schemas, golden frames and the SDK's table anew from contracts/
	$(BIN)/python -m contracts.generate

# Proofs and measurements at full size; `make test` runs them smaller. Results: benchmarks/results/.
serving: compiled ## throughput and latency of the whole mesh
	$(BIN)/python -m benchmarks.serving

bench-peers: compiled ## the same models behind other servers: installs them, runs, draws docs/benchmarks.md anew
	$(BIN)/python -m benchmarks.peers.install
	$(BIN)/python -m benchmarks.peers.run

breadth: compiled ## what a request costs among 1,000 models, 10,000 tenants, 10,000 connections
	$(BIN)/python -m benchmarks.breadth

overhead: compiled ## what each stage of a request costs, beside its floor
	$(BIN)/python -m benchmarks.overhead

soak: compiled ## 20 minutes of load: does any process grow
	$(BIN)/python -m benchmarks.soak

batching: compiled ## full batches against the ideal, on a model of known cost
	$(BIN)/python -m benchmarks.batching --out benchmarks/results/batching.json

tokens: compiled ## rows of unequal length: batches against single rows, long requests beside short ones
	$(BIN)/python -m benchmarks.tokens --out benchmarks/results/tokens.json

overload: compiled ## three times the capacity for a minute
	$(BIN)/python -m benchmarks.overload --out benchmarks/results/overload.json

fairness: compiled ## high risk beside a bulk, on a model that waits and one that computes; a flooding tenant
	$(BIN)/python -m benchmarks.fairness --out benchmarks/results/fairness.json

kills: compiled ## kill -9 of each service 100 times at 1,000 requests a second; receipts are counted
	$(BIN)/python -m benchmarks.kill_matrix --rate 1000 --kills 400 --out benchmarks/results/kill_matrix.json

fire: compiled ## planned restarts, a runtime killed for a minute, the edge killed, 5,000 clients, idle ones
	$(BIN)/python -m benchmarks.under_fire --out benchmarks/results/under_fire.json

blocks: compiled ## 10,000,000 requests: do Python's objects grow in any service
	$(BIN)/python -m benchmarks.blocks --result benchmarks/results/blocks.json

startup: compiled ## cold start, adding and restarting a runtime, a 1.2 GB pack, the first ten requests
	$(BIN)/python -m benchmarks.startup --out benchmarks/results/startup.json

swaps: compiled ## 100 promotes and rollbacks at 1,000 requests a second: nothing fails or is mixed; then 500 fast ones
	$(BIN)/python -m benchmarks.swaps --out benchmarks/results/swaps.json
	$(BIN)/python -m benchmarks.swaps --swaps 500 --pause 0.05 --out benchmarks/results/swaps_500.json

failing: compiled ## 10,000 requests that fail: memory, descriptors and threads stay flat
	$(BIN)/python -m benchmarks.failing --out benchmarks/results/failing.json

restarts: $(STAMP) ## 10,000 restarts of a trivial child: the supervisor's shape does not change
	$(BIN)/python -m benchmarks.restarts 10000 benchmarks/results/restarts.json

starvation: $(STAMP) ## half a minute without CPU time: nobody is taken for dead
	MORTISE_STARVED_S=30 $(BIN)/pytest -q tests/integration/test_starvation.py

fuzz: compiled ## 20,000 mutated graphs of programs; 10,000,000 mutated frames against the framer and a live server
	$(BIN)/python -m tests.fuzz.programs --count 20000
	$(BIN)/python -m tests.fuzz.wire --frames 10000000 --seed 20130101 --result benchmarks/results/fuzz-wire.json

push: compiled ## how long a commit takes until it is active everywhere
	$(BIN)/python -m benchmarks.push

ledger: $(STAMP) ## receipts a second, and how long a trace takes
	$(BIN)/python -m benchmarks.ledger 100000

features: $(STAMP) ## what the features of one request cost
	$(BIN)/python -m benchmarks.features --result benchmarks/results/features.json

mapping: compiled ## further replicas of a mesh by mapped weights, beside unpickling them
	$(BIN)/python -m benchmarks.mapping --result benchmarks/results/mapping.json

rules: compiled ## what routing rules cost a request
	$(BIN)/python -m benchmarks.rules --result benchmarks/results/rules.json

shadow: compiled ## what shadow traffic costs the answers: with copies and without, in turns
	$(BIN)/python -m benchmarks.shadow --result benchmarks/results/shadow.json

split: $(STAMP) ## what moves when shares change, over 1,000,000 keys
	$(BIN)/python -m benchmarks.split --result benchmarks/results/split.json

train: $(STAMP) ## train the flights models again; the same digests on one machine
	$(BIN)/python -m services.jobs.train --home examples/flights --compare

clean: ## remove what was installed and built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
