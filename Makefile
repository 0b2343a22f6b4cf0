# Every target sets up .venv first, once, from any Python 3.11 or newer (choose one with PYTHON=...).
# The kernels are compiled by the system's C compiler, else by one that pip fetches for the build. Java and Maven are
# needed by the suites that start real brokers, and by nothing else.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
WORKERS ?= auto
# More than there are processors: a worker waits for Spark, for disks and for processes that it kills, and with real
# brokers and clusters for half of the time.
some_more = $(if $(filter auto,$(WORKERS)),$(shell expr $$(getconf _NPROCESSORS_ONLN) + $(1)),$(WORKERS))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready
KERNELS := formats/native/kernels.bin
# What docs/guarantees.md promises is proved here. Without JDK and Maven the tests with real brokers are skipped, and say so.
TORTURE := tests/torture tests/formats/test_native.py tests/change/test_apply.py tests/change/test_lock.py \
	tests/change/test_plan.py tests/change/test_undo.py tests/repair/test_plan_cost.py tests/scenarios/test_interrupted_scenarios.py \
	tests/broker/test_locks.py tests/broker/test_client_decode.py \
	tests/cli/test_runs.py tests/scenarios/test_file_scenarios.py tests/look tests/broker/test_live.py

# Half a second of each of the thousand processes that the suites start goes into compiling what the one before compiled,
# where this is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test suite test-deep test-long test-torture test-brokers bench lint docs changelog dist lock golden \
	golden-quick golden-update clean

help:
	@echo "make demo          recover a damaged copy of a real store before your eyes"
	@echo "make test          lint, types, import rules and the test suite"
	@echo "make test-deep     samples of the long suites (needs JDK 17 and Maven)"
	@echo "make test-long     all of the long suites that need no broker"
	@echo "make test-torture  kills, power cuts, bad disks, hostile input, and the mutation test of verify; prints counts"
	@echo "make test-brokers  everything that starts real brokers (needs JDK 17 and Maven)"
	@echo "make golden        damaged stores, compared with what fixtures/golden keeps of them; golden-quick: a sample"
	@echo "make bench         brokers' recovery and ours, timed in turn (JDK 17, Maven, 25 GB of disk, half an hour)"
	@echo "make lint          lint, types and import rules alone"
	@echo "make docs          fill in the generated tables of the documentation"
	@echo "make dist          wheels, the folder that needs no Python, .deb and .rpm, in dist/ (PARTS=wheels: without the folder)"
	@echo "make lock          lock what CI and the folder install"
	@echo "make site          the documentation as pages, and the man pages, in build/"
	@echo "make changelog     put the changes since the last release together: VERSION=1.2.0"

setup: $(READY) $(KERNELS)

# CI installs exactly what packaging/dev.lock names, by checksum; elsewhere the newest that pyproject.toml allows.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "mqtool needs Python 3.11 or newer: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mqtool needs Python 3.11 or newer")'
	@echo "Setting up $(VENV), once: about 1 GB, most of it Spark, a minute or two ..."
	@$(PYTHON) -m venv $(VENV)
ifdef CI
	@$(PIP) install --quiet --require-hashes --requirement packaging/dev.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
else
	@$(PIP) install --quiet --editable '.[dev]'
endif
	@touch $(READY)

# A library of other sources is never used: it is built again here, before tests, and by this command.
$(KERNELS): $(READY) $(wildcard formats/native/*.c formats/native/*.h)
	@$(BIN)/python -m formats.native.build && touch $(KERNELS)

demo: setup
	@$(BIN)/python -m fixtures.demo

# All files of a release: wheels, the folder that needs no Python, .deb, .rpm (packaging/dist.py). Compiles CPython, once.
dist: setup
	@$(BIN)/python -B packaging/dist.py $(PARTS)

# Locks what CI and the folder install. Pinned by checksum; run it when a dependency changes.
lock: setup
	@$(BIN)/python -B packaging/lock.py

# puts changelog/unreleased/ together: make changelog VERSION=1.2.0
changelog: setup
	@$(BIN)/python packaging/changelog.py "$(VERSION)"

# Pages, in both languages, and man pages, from the same Markdown; a link that leads nowhere ends it.
site: setup
	@$(PIP) install --quiet --editable '.[site]'
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	$(BIN)/python -m sphinx -q -b man docs build/man

docs: setup
	$(BIN)/python -m tests.support.format_docs
	$(BIN)/python -m tests.support.command_docs
	$(BIN)/python -m tests.support.source_docs
	$(BIN)/python -m fixtures.lab.table

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# lint reads on one processor beside the tests, most of the time types
test: setup
	@$(MAKE) --no-print-directory -j2 lint suite

suite: setup
	$(BIN)/python -m pytest -n $(call some_more,1) --dist worksteal

test-deep: setup
	@$(BIN)/python -m tests.support.toolchain
	MQTOOL_DEEP=1 $(BIN)/python -m pytest -n $(call some_more,2) --dist worksteal -m "deep and not long"

test-long: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "long or (deep and not broker)"

test-torture: setup
	MQTOOL_DEEP=$$($(BIN)/python -m tests.support.toolchain && echo 1) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "" $(TORTURE)

# BROKERS="5.4.0 5.1.4" asks these releases instead; KEEP=1 keeps what was seen in fixtures/ and fills in the tables.
test-brokers: setup
	@$(BIN)/python -m tests.support.toolchain
	MQTOOL_DEEP=1 MQTOOL_BROKERS="$(BROKERS)" MQTOOL_KEEP=$(KEEP) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
		-o tmp_path_retention_policy=failed -m broker tests/broker
	$(if $(KEEP),$(BIN)/python -m fixtures.lab.table)

# What commands report and do on damaged stores is kept: ONLY=STORE[/RECIPE] asks for one, JOBS=N runs N at once.
golden: setup
	@$(BIN)/python -m tests.golden --jobs $(or $(JOBS),1) --only "$(ONLY)"

golden-quick: $(if $(wildcard $(READY)),,setup)
	@$(BIN)/python -m tests.golden --quick --jobs $(or $(JOBS),1)

golden-update: setup
	@$(BIN)/python -m tests.golden --update --jobs $(or $(JOBS),1) --only "$(ONLY)"

bench: setup
	@$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) $(KERNELS) build dist .pytest_cache .mypy_cache .ruff_cache
