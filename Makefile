# Everything runs from a fresh clone: each target sets up what it needs.
# Another Python, beside what is there: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
unexport PYTHONDONTWRITEBYTECODE  # else each process of a run compiles all modules again
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup console demo test test-fast check docs torture torture-mutations fuzz bench bench-peers clean

setup: $(VENV)/.ready console

# The web console: console/ → src/mainspring/api/static/. Without Node the rest works, and `/` says how to build it.
CONSOLE := src/mainspring/api/static/manifest.json

ifneq ($(shell command -v npm),)
console: $(CONSOLE)
else
console:
	@test -e $(CONSOLE) || echo "console: no Node.js here, so the web console is not built; all else works"
endif

console/node_modules/.ready: console/package.json console/package-lock.json
	cd console && npm ci --ignore-scripts --no-fund --no-audit --loglevel=error
	@touch $@

$(CONSOLE): console/node_modules/.ready console/build.mjs $(shell find console/src -type f)
	cd console && node build.mjs

$(VENV)/.ready: pyproject.toml constraints.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt -e .
	@touch $@

demo: setup
	$(BIN)/mainspring demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
ifneq ($(shell command -v npm),)
	cd console && node types.mjs && node_modules/.bin/tsc && node tests/run.mjs
endif

# The OpenAPI document, the schema of manifests, and the pages that are written from them.
docs: setup
	$(BIN)/python -m tests.docs.http_pages

# Five processes on two cores: most of the time of the long tests is spent waiting for a lease or for a process to start.
test: check
	./scripts/debian-postgres
	./scripts/debian-pgbouncer
	./scripts/debian-network
	./scripts/debian-browser
	VENV=$(VENV) ./scripts/test-all

# For every day: no processes, no leases, not thousands of cases (tests/lanes.py); some four minutes on two cores.
test-fast: setup
	$(BIN)/python -m pytest -n 4 --dist loadfile -m "not processes and not leases and not many_cases"

# Kills, stops, partitions and wrong clocks, and what must hold after them; a seed replays a run.
# docs/explanation/torture.md
SEED ?= 1
SECONDS ?= 120

torture: setup
	$(BIN)/python -m tests.torture --seed $(SEED) --seconds $(SECONDS)

# The same against code that is broken on purpose: each of the mutations must be noticed.
torture-mutations: setup
	$(BIN)/python -m tests.torture --mutations

# Requests that schemathesis makes from the OpenAPI document, against the HTTP API on a real socket; a seed replays a run.
# docs/explanation/torture.md#bad-input
CASES ?= 10000

fuzz: setup
	$(BIN)/python -m tests.api.fuzz --cases $(CASES) --seed $(SEED)

bench: setup
	$(BIN)/python -m benchmarks

# Beside Graphile Worker, pg-boss, PgQueuer, Procrastinate, Celery, Taskiq and APScheduler, each installed by name into
# .peers/: docs/explanation/peers.md. For example: make bench-peers PEERS="--only pgqueuer --parts pickup"
PEERS ?=

bench-peers: setup
	./scripts/debian-redis
	$(BIN)/python -m benchmarks.peers $(PEERS)

clean:
	rm -rf $(VENV) .peers console/node_modules src/mainspring/api/static .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
