# The two main commands are `make run` and `make test`. Each installs what it needs.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIPELINE ?= relative_loss
REPORTS_PORT ?= 8090
AIRFLOW_PORT ?= 8080
MLFLOW_PORT ?= 5000
RUNS ?= 3
NIGHTLY ?= conversions
N ?= 5
SECONDS ?= 1200
SEED ?=

# A value as one word of the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'
# The fields of the trigger form, as `make run NAME=value`.
CHOICES = $(if $(PROFILE),--profile $(call quoted,$(PROFILE))) $(if $(DATASET),--dataset $(call quoted,$(DATASET))) \
	$(if $(RAW),--raw $(call quoted,$(RAW))) $(if $(TASKS),--tasks $(call quoted,$(TASKS))) \
	$(if $(EPSILONS),--epsilons $(call quoted,$(EPSILONS))) $(if $(SEEDS),--seeds $(call quoted,$(SEEDS)))

.DEFAULT_GOAL := help
.PHONY: help run nights test test-browser test-servers test-nights test-lazy effects heavy false-alarms planted torture rot full-disk fuzz \
	lint format up validate bench bench-prepare walk mutants lock audit-lock

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22
	@echo
	@echo '  make run takes PIPELINE=name|all PROFILE=smoke|quick|paper DATASET= RAW=file|folder|pattern TASKS=pctr,pcvr EPSILONS=1,10 SEEDS=2'
	@echo "  make bench takes BENCH='--batch-sizes 64,1024 --rounds 5'; BENCH=--help lists the options"
	@echo '  make torture takes SECONDS=1200 SEED=7'
	@echo '  make nights takes N=5 NIGHTLY=conversions'
	@echo '  make up takes REPORTS_PORT= AIRFLOW_PORT= MLFLOW_PORT=. Generated files go to var/, or to DP_ADS_HOME=folder'

# `exec` makes the program a child of make itself, which it watches: make does not pass on a SIGINT.
run: $(VENV)/installed ## run a pipeline through Airflow, print its table and write its page
	@exec $(BIN)/python -m tasks run --pipeline $(call quoted,$(PIPELINE)) $(CHOICES)

nights: $(VENV)/installed ## play N nights of synthetic days: retrain, judge, promote, charge (about 5 minutes)
	@exec $(BIN)/python -m tasks nights $(call quoted,$(NIGHTLY)) --play $(call quoted,$(N))

# The tests start many processes, which read our compiled modules instead of compiling them again.
test: lint ## lint, type-check and test
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-servers: $(VENV)/installed ## make run beside make up RUNS times, and make up restarted during a run (about 10 minutes)
	@SERVERS_RUNS='$(RUNS)' $(BIN)/python -m pytest -q -m servers tests/tasks/runtime/test_beside_servers.py

test-lazy: $(VENV)/installed ## the longer tests of tables that are updated lazily (about 10 minutes)
	@$(BIN)/python -m pytest -q -n 2 -m lazy tests

test-nights: $(VENV)/installed ## nights through Airflow, the ledger on PostgreSQL and under SIGKILL, served models (about 10 minutes)
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m nights tests

torture: $(VENV)/installed ## kill steps at every file operation and at random moments, and ten runs at once (about 25 minutes)
	@$(BIN)/python -m tests.torture --seconds $(call quoted,$(SECONDS)) $(if $(SEED),--seed $(call quoted,$(SEED)))
	@$(BIN)/python -m pytest -q -m torture tests/tasks/owners

test-browser: $(VENV)/installed $(VENV)-browser/installed ## use the product in Debian's chromium, as on a first day (about 5 minutes)
	@command -v chromium >/dev/null || { echo 'error: chromium not found; install it, on Debian with: apt-get install chromium' >&2; exit 2; }
	@$(VENV)-browser/bin/python -m pytest -s -v -c tests/browser/pytest.ini tests/browser

effects: $(VENV)/installed ## run every quick pipeline, then test for the paper's effects (about 40 minutes)
	@$(BIN)/python -m tasks run --pipeline all
	@$(BIN)/python -m pytest -m effects tests/test_effects.py -k 'not heavy'

heavy: $(VENV)/installed ## the headline table on logs with heavy tails, then test it (about 8 minutes)
	@$(BIN)/python -m tasks run --dataset heavy_display --tasks pctr --epsilons 0.5,3,50
	@$(BIN)/python -m pytest -m effects tests/test_effects.py -k heavy
	@$(BIN)/python -m tasks run --dataset heavy_clicks --tasks pcvr,pconvs --epsilons 0.5,3,50
	@$(BIN)/python -m pytest -m effects tests/test_effects.py -k heavy

false-alarms: $(VENV)/installed ## audit over 200 correct trainers, then some on four devices (about 12 minutes)
	@$(BIN)/python -m pytest -q -n 2 -m 'soak or not soak' tests/tasks/privacy/test_no_false_alarms.py
	@XLA_FLAGS=--xla_force_host_platform_device_count=4 $(BIN)/python -m pytest -q tests/tasks/privacy/test_no_false_alarms.py

planted: $(VENV)/installed ## plant every bug in models of realistic size: the audit must fail each (about 12 minutes)
	@$(BIN)/python -m pytest -q -n 2 -m 'soak or not soak' tests/tasks/privacy/test_planted_bugs_in_larger_models.py

rot: $(VENV)/installed ## damage each file of a finished home in turn: named or harmless, never another table (about 40 minutes)
	@$(BIN)/python -m benchmarks.faults.rot

full-disk: $(VENV)/installed ## run on a disk that fills up, at 20 levels; needs root, to mount it (about 10 minutes)
	@$(BIN)/python -m benchmarks.faults.full_disk

fuzz: $(VENV)/installed ## look for a traceback from pipelines.yaml and from log files (10 minutes each)
	@FUZZ_MINUTES=5 $(BIN)/python -m pytest -q -s -m fuzz tests/tasks/config/test_loading_fuzz.py
	@FUZZ_MINUTES=10 $(BIN)/python -m pytest -q -s -m fuzz tests/tasks/logs/test_logs_fuzz.py

lint: $(VENV)/installed ## check format, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/installed ## format the code and apply lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

up: $(VENV)/installed ## serve the reports, the Airflow UI and MLflow; Ctrl-C stops them
	@exec $(BIN)/python -m tasks up --reports-port $(call quoted,$(REPORTS_PORT)) --airflow-port $(call quoted,$(AIRFLOW_PORT)) --mlflow-port $(call quoted,$(MLFLOW_PORT))

validate: $(VENV)/installed ## check pipelines.yaml
	@$(BIN)/python -m tasks validate

bench: $(VENV)/installed ## measure noise generators, and private training steps (about 8 minutes)
	@$(BIN)/python -m benchmarks.noise
	@$(BIN)/python -m benchmarks.clipping $(BENCH)

bench-prepare: $(VENV)/installed ## measure the preparation of logs against Polars (about 3 minutes)
	@$(BIN)/python -m benchmarks.preparation $(BENCH)

walk: $(VENV)/installed ## trace which modules a row passes, and draw it into docs/ (about 2 minutes)
	@$(BIN)/python -m benchmarks.walk

mutants: $(VENV)/installed ## change the code in 200 small ways: a test or the audit must notice each (about 25 minutes)
	@$(BIN)/python -m benchmarks.mutation

lock: ## resolve requirements.in into a new requirements.lock
	@$(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/pip install --quiet --disable-pip-version-check uv
	@$(VENV)-lock/bin/uv pip compile requirements.in --override requirements.override --python-version 3.11 \
		--universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet -o requirements.lock
	@rm -rf $(VENV)-lock
	@echo 'requirements.lock written'

# pip-audit asks PyPI. Exit status 1: known vulnerabilities; 3: not every package could be checked.
audit-lock: ## compare requirements.lock with the list of known vulnerabilities (needs PyPI)
	@$(PYTHON) -m venv $(VENV)-audit
	@trap 'rm -rf $(VENV)-audit' EXIT; \
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check pip-audit || \
		{ echo 'error: pip-audit cannot be installed, so nothing was checked' >&2; exit 3; }; \
	$(VENV)-audit/bin/pip-audit --require-hashes --disable-pip --progress-spinner off --format json -r requirements.lock \
		> $(VENV)-audit/report.json 2> $(VENV)-audit/said; \
	[ -s $(VENV)-audit/report.json ] || tail -1 $(VENV)-audit/said >&2; \
	$(PYTHON) -m benchmarks.locked_packages $(VENV)-audit/report.json

# The lock lists every package with its hash, so pip has nothing to resolve: --no-deps.
$(VENV)/installed: requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo 'error: Python 3.11 not found; give its path with PYTHON=path' >&2; exit 2; }
	@echo 'installing into $(VENV) (once; about two minutes)'
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@touch $@

$(VENV)-browser/installed: tests/browser/requirements.txt
	@$(PYTHON) -m venv --clear $(VENV)-browser
	@$(VENV)-browser/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@
