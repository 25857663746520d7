# make repro    environment, the whole pipeline on params.yaml, and its summary
# make test     environment and tests             make test-long  hours: 10,000 cases per property, and kills
# make lint     style and types                   make coverage   the share of src that the tests run
# make profile NAME=minilm   params.yaml of another scale      make study NAME=layer_maps   a published comparison
# make init ARGS="TABLE --text COLUMN --label COLUMN"        a task for your own table, written into params.yaml
# make compare  experiments side by side          make ui         MLflow's page on this machine
# make record NAME=minilm    copies a finished run's numbers and settings to results/, for git
# make bench    speed and memory against a plain reference (BENCH="--data local/glue --vocabulary .../vocab.txt")
# make ask Q="The capital city of France is [MASK]."   predictions of the teacher and the domain students
PYTHON ?= python3
VENV := .venv
TINYBERT := PYTHONPATH=src python -m tinybert.cli
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: setup setup-dev repair init repro test test-long coverage lint bench compare ui ask profile study record
.DEFAULT_GOAL := repro

setup: $(VENV)/requirements.done
setup-dev: $(VENV)/requirements-dev.done

$(VENV)/%.done: %.txt requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
		"Python 3.11 or newer is needed (got %s); fix: make PYTHON=..." % sys.version.split()[0])'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "No virtual environment: install the package python3-venv."; exit 1; }
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# DVC's own files, after a kill.
repair: setup
	@$(TINYBERT) repair

repro: repair
	@python -m stages.check_params
	dvc repro
	@cat reports/summary.txt
	@printf '\nReport: %s\n' "$(CURDIR)/reports/index.html"

# Most of the time goes into starting processes, hence two workers of one thread each. In the order of collection the
# slow files of faults/ and pipeline/ start first.
test: setup-dev
	OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Fails below 90 % of src; stages that tests start count too.
coverage: setup-dev
	OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cov

test-long: setup-dev
	OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "long or properties" \
		--hypothesis-profile=long --durations=20

lint: setup-dev
	ruff check . && ruff format --check . && mypy

compare: setup
	@dvc exp show --only-changed --drop '.*/|metrics|.*yaml|Created|Executor|State'

# The page alone, without MLflow's job workers.
ui: setup
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --host 127.0.0.1 --workers 1 \
		--backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///$(CURDIR)/mlflow.db}

ask: setup
	@$(TINYBERT) ask "$$Q"

bench: setup
	PYTHONPATH=src python -m benchmarks $(BENCH)

init: setup
	@$(TINYBERT) init $(ARGS)

profile: setup
	@$(TINYBERT) profile $(NAME) $(if $(FORCE),--force)

study: setup
	@$(TINYBERT) study $(NAME) $(ARGS)

record: setup
	@$(TINYBERT) record $(NAME)
