# Every target sets itself up: Python 3.11+, pip, make and git are all it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
# Most tests wait for processes and servers of their own: so four workers keep two cores busy.
WORKERS ?= 4
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
# The tests start thousands of processes: each compiles all modules again unless they are cached, also where the
# environment says not to.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache

.PHONY: demo test check crash bench docs screenshots setup system cluster lock audit clean

demo: $(CORE)  ## evaluate a bundled task, kill it part-way, run it again
	$(BIN)/holdfast demo

test: setup system  ## the whole quick test suite (what CI runs)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not long"

check: setup system  ## format, lint, types, imports, tests
	$(BIN)/ruff format src tests bench tools
	$(BIN)/ruff check src tests bench tools
	sh -n tools/system-packages
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not long" --ignore tests/tidy/test_tools.py

crash: setup system cluster  ## the exhaustive crash proofs: every state, every kill point, every flip
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/crash tests/property tests/e2e -m "long or not long" --durations=10
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/unit tests/security tests/tidy -m long

bench: setup system  ## all benchmarks, with their peers, in one run
	$(BIN)/python -m bench

docs: setup  ## the reference pages, made from the source, then all of docs as a static site in site/
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/picture.py
	$(BIN)/mkdocs build --strict --quiet

screenshots: setup system  ## the pictures of the viewer in docs/images
	$(BIN)/python tools/screenshots.py

setup: $(READY) $(PEERS)

$(CORE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

# Development and CI install exactly what the lock file lists, each file with its hash.
$(READY): requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(CORE) $@

# Tools whose benchmarks tests compare with ours, and the schemas of Kubernetes: without their dependencies, in a folder
# that no program imports from.
# Without a network their tests are skipped, and the next `make` tries again.
$(PEERS): requirements-peers.txt | $(READY)
	rm -rf $(VENV)/peers
	$(BIN)/pip install --quiet --disable-pip-version-check --retries 1 --no-deps --no-compile --require-hashes \
		--target $(VENV)/peers -r requirements-peers.txt && touch $@ \
		|| echo "some of requirements-peers.txt could not be installed: tests that compare with them are skipped"

lock:  ## resolve the dependencies again and write requirements-dev.txt, with hashes for all platforms
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.7
	$(VENV)/lock/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --extra dev \
		--no-emit-index-url --no-header --no-annotate --output-file requirements-dev.txt pyproject.toml

audit:  ## look up every locked package in the public list of known vulnerabilities; fails if one cannot be looked up
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off \
		-r requirements-dev.txt -r requirements-peers.txt

system:
	@tools/system-packages strace chromium

cluster:
	@tools/system-packages munge slurm-wlm:slurmctld

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
