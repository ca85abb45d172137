# On a fresh machine `make demo` or `make test` is all that is needed: each builds the environment it uses.
#
#   PYTHON       the interpreter the environment is made from (3.11, 3.12 or 3.13)
#   TORCH_ARGS   extra pip arguments for the installation of PyTorch alone, e.g. to take the smaller CPU build:
#                make test TORCH_ARGS="--index-url <PyTorch's CPU wheel index>"
#   PYTEST_ARGS  extra arguments for pytest
#   JOBS         processes of tests and of the demo's runs, each with one thread
#   SLICE        a slice of the long checks for `make rotate`; `make rotate SLICE=list` names them
#   PARTS        parts of `make endurance`, as pytest's -k takes them: soak, years, returns, disk, power, two
#   MINUTES      after which no test of a slice begins
#   BENCH_ARGS   extra arguments for the benchmarks, e.g. BENCH_ARGS=--quick

PYTHON      ?= python3
TORCH_ARGS  ?=
PYTEST_ARGS ?=
PARTS       ?=
JOBS        ?= 2
SLICE       ?=
MINUTES     ?= 20

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
TESTED := -m pytest -q -n $(JOBS) --dist worksteal
# Threads that wait do not spin: a test of two threads takes 8 times as long beside others where they do.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
PYTEST := $(THREADS) $(BIN)/python $(TESTED)

# Bytecode is written where a module is first imported, and not for all that is installed.
export PYTHONDONTWRITEBYTECODE :=

# The benchmarks' environment: the library and its peers, which pin other versions of what the tests use.
BENCH := .venv-bench
PEERS := $(BENCH)/bin/python -m pip --disable-pip-version-check install --quiet

# The site's environment: what writes pages and reads docstrings, and nothing that computes.
DOCS := .venv-docs

# The auditor's environment.
AUDIT := .venv-audit

# Environments that stand on the tests' own, and hold other versions of some packages: FLARE 2.7 and 2.8, Lightning, everything's newest.
FLARE  := .venv-flare-
NEWEST := .venv-newest
LIGHTNING := .venv-lightning

# Stamps: PyTorch alone; the library and the laboratory (demo); what the tests need, with the studies; linters and Flower's simulation.
BASE := $(VENV)/.torch-installed
CORE := $(VENV)/.core-installed
TEST := $(VENV)/.test-installed
DEV  := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint types check slow rotate mutation crash hostile fuzz endurance hashes sbom audit-deps fresh browser notebooks deploy-test deploy-kills deploy-methods flare-poc deploy-demo wheels docs flare-2.7 flare-2.8 lightning newest newest-flwr newest-nvflare newest-torch newest-pandas data-test bench bench-check clean distclean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9. -]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE)  ## compare privacy settings on handwritten digits, then persons (made up) as the unit; prints the tables
	$(BIN)/fedveil compare --seeds 3 --jobs $(JOBS)
	$(BIN)/fedveil compare digits-person --jobs $(JOBS)

test: $(TEST)  ## run the tests (without the slow ones)
	@$(PYTEST) --timeout 240 $(PYTEST_ARGS)

lint: $(DEV)  ## ruff: rules and formatting; hadolint: the Containerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint examples/deployment/Containerfile

types: $(DEV)  ## mypy, strict
	$(BIN)/mypy

check: lint types test  ## lint, types and test

slow: $(DEV)  ## run the long checks
	@$(PYTEST) -m slow $(PYTEST_ARGS)

rotate: $(TEST)  ## run one slice of all long checks (at most 25 minutes), another with each commit
	@$(BIN)/python tests/rotate.py $(SLICE) --minutes $(MINUTES)

mutation: $(TEST)  ## plant bugs in copies of the library: the tests have to notice each of them
	@$(PYTEST) -m slow tests/mutation $(PYTEST_ARGS)

crash: $(TEST)  ## kill runs at every step and at random moments, and go on with them; prints the figures
	@$(PYTEST) -n 0 -m slow tests/crash $(PYTEST_ARGS)

hostile: $(TEST)  ## play a hostile server and hostile clients, 28,000 games and cases, 20,000 policies and 30,000 orders of them, forged reports; prints the figures
	@$(PYTEST) -n 0 -s -m slow tests/hostile $(PYTEST_ARGS)

fuzz: $(TEST)  ## read a hundred thousand hostile inputs (10 minutes): files, configurations, ledgers, messages, reports
	@FUZZ=1 $(PYTEST) -m slow tests/fuzz $(PYTEST_ARGS)

endurance: $(TEST)  ## years of use: a soak, 5,000 runs on one ledger, failing disks, power cuts; PARTS="soak or disk" plays some
	@$(PYTEST) -m slow tests/endurance $(if $(PARTS),-k "$(PARTS)") $(PYTEST_ARGS)

hashes: $(TEST)  ## write constraints-hashes.txt anew, from constraints.txt and the index
	$(BIN)/python tests/supply/hashes.py

sbom: $(TEST)  ## write sbom.cdx.json anew, the bill of materials that is in the wheel
	$(BIN)/python tests/supply/sbom.py

audit-deps: $(AUDIT)/.installed  ## ask an advisory database about every pin (needs the network); exit code 3 where it could not be asked
	$(AUDIT)/bin/python tests/supply/audit_deps.py

fresh: $(TEST)  ## every page, help, preset and module in a process of its own
	@$(PYTEST) -m slow tests/fresh $(PYTEST_ARGS)

browser: $(TEST)  ## open a report's page in headless Chromium (which has to be there)
	@$(PYTEST) -n 0 -m browser tests/browser $(PYTEST_ARGS)

notebooks: $(TEST)  ## run examples/notebooks from top to bottom
	$(PIP) -e ".[notebooks]" -e ./lab
	@$(PYTEST) -n 0 -m notebooks tests/notebooks $(PYTEST_ARGS)

wheels: $(TEST)  ## build the wheels, install them beside the PyTorch that is there, and run the first command
	@$(PYTEST) -n 0 -m wheels tests/wheels $(PYTEST_ARGS)

deploy-test: $(TEST)  ## try to get round `fedveil node` on a real SuperLink and SuperNodes, and what goes wrong at a site (15 minutes)
	@$(PYTEST) -n 0 -m deploy tests/deploy/test_chain.py tests/deploy/test_bad_input.py tests/deploy/test_server_killed.py tests/deploy/test_existing_app.py tests/deploy/test_ifca.py $(PYTEST_ARGS)

deploy-kills: $(TEST)  ## kill -9 SuperLink, ServerApp and SuperNodes in a run, and go on with it (CHAIN_PATIENCE=300: on a busy machine)
	@$(PYTEST) -n 0 -m "deploy and not slow" tests/deploy/test_kills.py tests/deploy/test_example_deployed.py tests/deploy/test_foreign_app.py $(PYTEST_ARGS)

deploy-methods: $(TEST)  ## each method on a SuperLink and three SuperNodes ends in the embedded bits (CHAIN_PATIENCE=300: on a busy machine)
	@$(PYTEST) -n 0 -m deploy tests/deploy/test_methods_deployed.py $(PYTEST_ARGS)

flare-poc: $(TEST)  ## every method by one line in FLARE's proof of concept on loopback, and hostile jobs there (POC_PATIENCE=1800: on a busy machine)
	@$(PYTEST) -n 0 -m deploy tests/fedveil/engines/nvflare $(PYTEST_ARGS)

deploy-demo: $(TEST)  ## watch a deployment: three sites with TLS, keys and policies, and what gets nowhere
	@$(PYTEST) -n 0 -s -m deploy tests/deploy/test_demo.py $(PYTEST_ARGS)

data-test: $(TEST)  ## run the tests on the real data sets (FEDVEIL_DATA, or ../shared/data)
	@$(PYTEST) -m "data and not slow" $(PYTEST_ARGS)

docs: $(DOCS)/.installed  ## the site, below build/site; a link that leads nowhere is an error
	rm -rf build/pages && mkdir -p build/pages
	cp -r *.md docs results examples lab studies tests benchmarks Makefile LICENSE CITATION.cff pyproject.toml constraints.txt constraints-hashes.txt sbom.cdx.json build/pages/
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet

flare-2.7 flare-2.8: flare-%: $(FLARE)%/.installed  ## run the tests of NVIDIA FLARE with an older line of it
	$(THREADS) $(FLARE)$*/bin/python $(TESTED) -m "" tests/fedveil/engines/nvflare $(PYTEST_ARGS)

lightning: $(LIGHTNING)/.installed  ## run the tests of a FLARE site that trains by PyTorch Lightning
	$(THREADS) $(LIGHTNING)/bin/python $(TESTED) $(SEAMS_nvflare)/test_nvflare_lightning.py $(PYTEST_ARGS)

newest: $(NEWEST)/.installed  ## run the tests with the newest version of each package that pyproject.toml allows
	$(THREADS) $(NEWEST)/bin/python $(TESTED) --timeout 240 $(PYTEST_ARGS)

# What stands on a seam of each: the engine, the node and the deployment; the engine; training; tables.
SEAMS_flwr    := tests/fedveil/engines/flower tests/fedveil/node
SEAMS_nvflare := tests/fedveil/engines/nvflare
SEAMS_torch   := tests/fedveil/learning tests/fedveil/engines/test_federation.py
SEAMS_pandas  := tests/fedveil/data tests/fedveil_lab/config

newest-flwr newest-nvflare newest-torch newest-pandas: newest-%: $(NEWEST)-%/.installed  ## run the tests that stand on one package with its newest version
	$(THREADS) $(NEWEST)-$*/bin/python $(TESTED) --timeout 240 $(SEAMS_$*) $(PYTEST_ARGS)

bench: $(BENCH)/.installed  ## measure speed beside the peers (20 minutes; keep the machine idle), write docs/benchmarks.md
	$(BENCH)/bin/python -m benchmarks $(BENCH_ARGS)

bench-check: $(BENCH)/.installed  ## measure again and compare ratios with the committed ones; exit code 1 where one is 1.5 times worse
	$(BENCH)/bin/python -m benchmarks --check engines footprint cnn noise kernels per_example

clean:  ## remove caches and build products (runs/ stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src lab studies tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove the environment as well
	rm -rf $(VENV) $(BENCH) $(DOCS) $(AUDIT) $(FLARE)* $(LIGHTNING) $(NEWEST)*

# PyTorch goes first and alone, so that TORCH_ARGS cannot change where anything else comes from; its
# dependencies follow with the next command.
$(BASE): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "FedVeil needs Python 3.11, 3.12 or 3.13, but " + sys.executable + " is " + sys.version.split()[0] + "; say which to use: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH_ARGS) --no-deps torch==2.13.0
	@touch $@

$(CORE): $(BASE) pyproject.toml constraints.txt lab/pyproject.toml lab/hatch_build.py
	$(PIP) -e . -e ./lab
	@touch $@

$(TEST): $(BASE) pyproject.toml constraints.txt lab/pyproject.toml lab/hatch_build.py studies/pyproject.toml studies/hatch_build.py
	$(PIP) -e ".[test]" -e ./lab -e ./studies
	@touch $(CORE) $@

$(DEV): $(TEST)
	$(PIP) -e ".[dev]" -e ./lab -e ./studies
	@touch $@

$(DOCS)/.installed: Makefile
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet mkdocs==1.6.1 mkdocs-material==9.8.1 "mkdocstrings[python]==1.0.8"
	@touch $@

$(AUDIT)/.installed: Makefile
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip --disable-pip-version-check install --quiet "pip-audit>=2.9"
	@touch $@

# What $(1) does not hold itself, it finds in the tests' environment, with the editable installs that are there.
define above
	$(PYTHON) -m venv $(1)
	below=$$(cd $(VENV)/lib/python3*/site-packages && pwd) && echo "import site; site.addsitedir('$$below')" > $$(echo $(1)/lib/python3*/site-packages)/below.pth
endef

ABOVE := bin/python -m pip --disable-pip-version-check install --quiet --no-compile

$(FLARE)%/.installed: $(TEST)
	$(call above,$(FLARE)$*)
	$(FLARE)$*/$(ABOVE) "nvflare==$*.*"
	@touch $@

$(LIGHTNING)/.installed: $(TEST)
	$(call above,$(LIGHTNING))
	$(LIGHTNING)/$(ABOVE) pytorch-lightning
	@touch $@

$(NEWEST)-%/.installed: $(TEST)
	$(call above,$(NEWEST)-$*)
	$(NEWEST)-$*/$(ABOVE) --upgrade $(if $(filter torch,$*),$(TORCH_ARGS) --no-deps) $*
	@$(NEWEST)-$*/bin/python -c 'import torch' 2>/dev/null || { echo "this PyTorch asks for libraries of CUDA that are not here: take its CPU build, make newest-$* TORCH_ARGS=..."; exit 1; }
	@touch $@

$(NEWEST)/.installed: $(TEST)
	$(call above,$(NEWEST))
	$(NEWEST)/$(ABOVE) --upgrade $(TORCH_ARGS) --no-deps torch
	$(NEWEST)/$(ABOVE) --upgrade --upgrade-strategy eager -e ".[test]" -e ./lab -e ./studies
	@touch $@

# A peer that does not install is left out of the comparison, with a word; the rest is measured.
$(BENCH)/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(PEERS) $(TORCH_ARGS) --no-deps -c constraints.txt torch==2.13.0
	$(PEERS) -c constraints.txt -e . -e ./lab
	@sed 's/#.*//' benchmarks/requirements.txt | while read -r peer; do \
		[ -z "$$peer" ] || $(PEERS) torch==2.13.0 "$$peer" || echo "left out: $$peer does not install"; done
	@touch $@

