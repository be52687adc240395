# Every target makes what it needs: the virtual environment, the locked packages, the compiled core.
# `make` alone prints the targets. Needs Python 3.11+, Rust and, for Spark, Java 17+ (or a wheel of it).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV := .venv
PY := $(VENV)/bin/python
WITH_JAVA := .ci/with-java
SMOKE := target/smoke
# Directories count too: their time changes when a file comes or goes.
RUST := $(shell find src -type d -o -name '*.rs')
# Tests run on lightly optimised code: they compile fast and still do real work.
export CARGO_PROFILE_DEV_OPT_LEVEL ?= 1
# PyO3 is built against this project's Python, whatever else is on the PATH.
export PYO3_PYTHON := $(CURDIR)/$(PY)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# Spark starts its workers with this Python, not with the first on the PATH.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Test files that run beside each other: much of what they do is to wait, each has a Spark of its own.
JOBS ?= 2
PYTEST = $(WITH_JAVA) $(PY) -m pytest tests -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Arguments for demo, test-python and bench, e.g. make test-python ARGS="-k fence".
ARGS ?=

.PHONY: help
help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- what the targets stand on ------------------------------------------------------------------

$(PY):
	@echo "--> virtual environment in $(VENV)"
	@python=$$(.ci/check-python) && "$$python" -m venv $(VENV)

$(VENV)/.packages: requirements-dev.lock | $(PY)
	@echo "--> packages from requirements-dev.lock"
	@$(PY) -m pip install --quiet -r requirements-dev.lock
	@touch $@

$(VENV)/.core: $(RUST) Cargo.toml Cargo.lock pyproject.toml $(VENV)/.packages
	@.ci/check-rust
	@echo "--> the core, in release mode (some minutes the first time)"
	@$(PY) -m maturin develop --release --locked
	@touch $@

$(VENV)/spark.jsa: $(VENV)/.packages .ci/archive_classes.py
	@echo "--> an archive of Spark's classes, with which tests start it in about 0.6 of the time"
	@$(WITH_JAVA) $(PY) .ci/archive_classes.py $@ >/dev/null 2>&1 || { echo "    not with this Java"; touch $@; }
	@touch $@

# --- using it -----------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.core ## Plain Spark and Clonos lose the same processes: what each pays twice and gets wrong.
	@$(WITH_JAVA) $(VENV)/bin/clonos demo $(ARGS)

.PHONY: demo-stream
demo-stream: $(VENV)/.core ## Count words from a socket while processes are killed at random: five minutes.
	@$(WITH_JAVA) $(PY) examples/banned_words_demo --chaos --seconds 45 $(ARGS)

.PHONY: build
build: $(VENV)/.core ## Compile the core and install the package into .venv.

# --- checking it --------------------------------------------------------------------------------

.PHONY: test
test: test-rust test-quick ## The core alone, then features on real Spark and some kills: about 15 minutes.

.PHONY: test-quick
test-quick: $(VENV)/.core $(VENV)/spark.jsa ## The second part of `make test`.
	$(PYTEST) -m "not whole and not hosts and not yarn" $(ARGS)

.PHONY: test-all
test-all: $(VENV)/.core $(VENV)/spark.jsa ## What `make test` leaves out: all kills, servers, examples, every type.
	$(PYTEST) -m whole $(ARGS)

.PHONY: test-failed
test-failed: $(VENV)/.core $(VENV)/spark.jsa ## What failed last, once more and one at a time: a machine may have been too slow for several.
	$(WITH_JAVA) $(PY) -m pytest tests --last-failed --last-failed-no-failures none $(ARGS)

.PHONY: test-hosts
test-hosts: $(VENV)/.core ## A cluster of hosts that are switched off, cut off, slowed down and paused: needs root and iproute2.
	$(WITH_JAVA) $(PY) -m pytest tests/hosts $(ARGS)

.PHONY: test-yarn
test-yarn: $(VENV)/.core ## A YARN whose containers are killed: needs a JDK, and mvn to fetch it the first time.
	$(WITH_JAVA) $(PY) -m pytest tests/yarn $(ARGS)

.PHONY: test-mutants
test-mutants: $(VENV)/.core ## Put faults back that were in the code, and see that a test notices each.
	$(WITH_JAVA) $(PY) tests/mutants/run.py $(ARGS)

# Features, as clients of a server: what is refused there by name is skipped with that name.
OVER_CONNECT := ordinary ordinary_functions kinds like_plain call_options calls value failing groups udtf queries \
	unions exchange keyed_state
.PHONY: test-connect
test-connect: $(VENV)/.core $(VENV)/spark.jsa ## The tests of features over Spark Connect: about 20 minutes.
	CLONOS_TESTS_OVER_CONNECT=1 $(WITH_JAVA) $(PY) -m pytest $(OVER_CONNECT:%=tests/spark/test_%.py) $(ARGS)

THREADS ?= 8
.PHONY: test-rust
test-rust: ## The core, without Python in the build.
	@.ci/check-rust
	@# Most of what takes long waits for somebody.
	RUST_TEST_THREADS=$(THREADS) cargo test --locked

.PHONY: test-python
test-python: $(VENV)/.core $(VENV)/spark.jsa ## All of pytest, real Spark and real processes included.
	$(PYTEST) -m "not hosts and not yarn" $(ARGS)

# The other versions of PySpark that are supported, each in an environment of its own.
PYSPARK_4.1 := 4.1.4
PYSPARK_4.2 := 4.2.1
SPARK ?= 4.1

$(VENV)-spark-%/.packages: requirements-dev.lock Makefile | $(PY)
	$(if $(PYSPARK_$*),,$(error SPARK=$* is none of 4.1 and 4.2: `make test-python` runs the version in requirements-dev.lock))
	@echo "--> virtual environment with PySpark $(PYSPARK_$*) in $(@D)"
	@$(PY) -m venv $(@D)
	@sed 's/^pyspark==.*/pyspark==$(PYSPARK_$*)/' requirements-dev.lock >$(@D)/requirements.txt
	@$(@D)/bin/python -m pip install --quiet -r $(@D)/requirements.txt
	@touch $@

.PHONY: test-spark
test-spark: $(VENV)/.core $(VENV)-spark-$(SPARK)/.packages ## Features and a kill on an older PySpark, e.g. make test-spark SPARK=4.1
	PYTHONPATH=$(CURDIR)/python PYSPARK_PYTHON=$(CURDIR)/$(VENV)-spark-$(SPARK)/bin/python \
		$(WITH_JAVA) $(VENV)-spark-$(SPARK)/bin/python -m pytest tests/spark \
		tests/kill/test_executors.py::test_an_executor_is_lost_with_its_agent $(ARGS)

.PHONY: lint
lint: $(VENV)/.packages ## Formatting, clippy, ruff, mypy: no warning is left.
	@.ci/check-rust
	cargo fmt --check
	cargo clippy --locked --all-targets --all-features -- -D warnings
	$(PY) -m ruff check --no-cache .
	$(PY) -m ruff format --check .
	$(PY) -m mypy python

.PHONY: fmt
fmt: $(VENV)/.packages ## Format Rust and Python, apply the safe fixes.
	@.ci/check-rust
	cargo fmt
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

.PHONY: bench
bench: $(VENV)/.core ## Measure, compare with the last kept run, keep this one (in .benchmarks).
	$(WITH_JAVA) $(PY) -m pytest benches --benchmark-only --benchmark-autosave --benchmark-compare \
		--benchmark-group-by=group --benchmark-sort=name -o timeout=0 $(ARGS)
	@if compgen -G 'benches/*.rs' >/dev/null; then cargo bench --locked --bench '*'; fi

.PHONY: bench-once
bench-once: $(VENV)/.core ## Run each benchmark once, as a test that it still works.
	@if compgen -G 'benches/bench_*.py' >/dev/null; then \
		$(WITH_JAVA) $(PY) -m pytest benches --benchmark-disable -o timeout=600 $(ARGS); \
	else echo "no Python benchmarks"; fi

$(VENV)-wheel/.packages: requirements-wheel.lock | $(PY)
	@echo "--> what builds wheels, into $(VENV)-wheel"
	@$(PY) -m venv $(VENV)-wheel
	@$(VENV)-wheel/bin/python -m pip install --quiet -r requirements-wheel.lock
	@touch $@

# PyO3 needs no Python of the target's for abi3, and maturin no compiler but zig's.
.PHONY: wheel
wheel: $(VENV)-wheel/.packages ## A wheel for Linux with glibc 2.17 or later and a source distribution, into dist.
	@.ci/check-rust
	rm -rf dist
	PATH="$(CURDIR)/$(VENV)-wheel/bin:$$PATH" maturin build --release --locked --strip --zig --compatibility manylinux2014 --out dist
	$(VENV)-wheel/bin/auditwheel show dist/clonos-*.whl
	$(VENV)-wheel/bin/maturin sdist --out dist

.PHONY: wheel-smoke
wheel-smoke: $(VENV)/.packages ## Build the wheel, install it in an empty environment, use it there.
	@.ci/check-rust
	rm -rf $(SMOKE) && mkdir -p $(SMOKE)
	$(PY) -m maturin build --release --locked --out $(SMOKE)
	$(PY) -m venv $(SMOKE)/venv
	$(SMOKE)/venv/bin/python -m pip install --quiet --constraint requirements-dev.lock $(SMOKE)/clonos-*.whl
	cd $(SMOKE) && env -u VIRTUAL_ENV -u PYTHONPATH venv/bin/python -I $(CURDIR)/.ci/smoke.py

# --- keeping it ---------------------------------------------------------------------------------

.PHONY: lock
lock: $(PY) ## Resolve pyproject.toml afresh into the lock files.
	@$(PY) .ci/lock.py

.PHONY: clean
clean: ## Remove what was built and the virtual environment.
	rm -rf $(VENV) $(VENV)-spark-* $(VENV)-wheel target dist demo-output python/clonos/_core*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
