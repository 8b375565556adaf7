# Two commands: `make demo` and `make test`. Everything they need is put into .venv from the
# locked requirements; nothing is installed elsewhere.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast cluster-tools lint docs manifests site screenshot dashboards bench bench-cluster soak fuzz lock clean

help: ## What there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.runtime ## Run exporter and reconciler on a simulated cluster (ARGS=--once prints one sample)
	@$(BIN)/python -m vgpu demo $(ARGS)

test: $(VENV)/.dev lint ## All checks and tests
	$(BIN)/coverage erase
	$(BIN)/python -m pytest --cov --cov-report= $(ARGS)
	@$(BIN)/coverage combine --quiet 2>/dev/null || true
	$(BIN)/coverage report

test-fast: $(VENV)/.dev ## Tests without those that take longer than a few seconds
	$(BIN)/python -m pytest -m "not slow and not cluster" $(ARGS)

cluster-tools: $(VENV)/.runtime ## Build the Kubernetes of the tests, once (ARGS=--prune deletes old ones)
	@$(BIN)/python -m tests.support.bed.tools $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy, import-linter, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m grafana.generate --check
	$(BIN)/python -m deploy.generate --check

docs: $(VENV)/.dev ## Write the generated documentation and rules
	$(BIN)/python docs/generate.py
	$(BIN)/python -m grafana.generate
	$(BIN)/python -m deploy.generate

manifests: $(VENV)/.dev ## Render deploy/manifests from the chart (needs the cluster tools)
	$(BIN)/python -m deploy.manifests --helm "$$($(BIN)/python -c \
	  'from tests.support.bed.tools import Tool, ensure; print(ensure(Tool.HELM).path(Tool.HELM))')"

site: $(VENV)/.dev ## Build the documentation as a site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

screenshot: $(VENV)/.dev ## Take the picture of the README anew
	$(BIN)/python docs/screenshot.py

dashboards: $(VENV)/.dev ## Take the pictures of the dashboards anew (five minutes)
	$(BIN)/python docs/dashboards_capture.py

bench: $(VENV)/.dev ## Measure each part beside its peers; exits with 1 if a budget is passed over
	@status=0; for one in "exporter.py $(ARGS)" decode.py ledger.py inspection.py reconcile.py controller.py \
	  plugin_lists.py plugin.py; do \
	  $(BIN)/python benchmarks/$$one || status=1; done; exit $$status

bench-cluster: $(VENV)/.dev ## Measure large simulated clusters (ARGS="--nodes 5000 --pods 10000") and a busy node
	$(BIN)/python benchmarks/cluster.py $(ARGS)
	$(BIN)/python benchmarks/plugin_admission.py

soak: $(VENV)/.dev ## A day of samples and scrapes, accelerated
	$(BIN)/python benchmarks/soak.py $(ARGS)

FUZZ_SECONDS ?= 300
fuzz: $(VENV)/.dev ## Fuzz the parsers of hostile files (FUZZ_SECONDS each; the tests do 30)
	cd $$(mktemp -d) && for target in region checkpoint; do \
	  $(CURDIR)/$(BIN)/python $(CURDIR)/tests/fuzz/fuzz_$$target.py -max_total_time=$(FUZZ_SECONDS) || exit 1; done

lock: $(VENV)/.python ## Resolve the requirements anew
	$(BIN)/pip install --quiet uv
	for set in "runtime:" "dev:--group dev"; do $(BIN)/uv pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --no-emit-find-links pyproject.toml --extra pod-resources --extra device-plugin $${set#*:} \
	  -o requirements/$${set%%:*}.lock; done
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	  --constraints requirements/dev.lock - -o requirements/build.lock
	echo kubernetes==35.0.0 | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links - \
	  -o requirements/kubernetes-oldest.lock

clean: ## Remove what make has made
	rm -rf $(VENV) site .cache .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis .coverage*

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo '$(PYTHON) is missing. Type: apt install python3 python3-venv' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'vgpu needs Python 3.11 or newer; $(PYTHON) is older (set PYTHON=...)' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo 'python3-venv is missing. Type: apt install python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: requirements/runtime.lock | $(VENV)/.python
	@echo 'Setting up $(VENV) (once) ...'
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements/runtime.lock
	@touch $@

$(VENV)/.dev: requirements/dev.lock pyproject.toml | $(VENV)/.python
	@echo 'Setting up $(VENV) for development (once) ...'
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements/dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.runtime
