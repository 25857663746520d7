# make repro   everything: environment, pipeline on params.yaml, summary and report
# make test    environment and tests          make test-long   hours: 10,000 cases of bad input a kind, and kills
# make lint    style and types                make coverage    how much of src the tests run
# make study NAME=layer_maps   a published comparison (studies/), run and judged here
# make bench   speed and memory, ours against a plain reference   (BENCH="--data local/glue --vocabulary .../vocab.txt")
# make compare experiments side by side, where they differ
# make ui      MLflow's page on this machine  make profile NAME=minilm   another scale's params.yaml
# make ask Q="The capital city of France is [MASK]."   what teacher and domain students answer
PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: setup setup-dev repro test test-long coverage lint bench compare ui ask profile study
.DEFAULT_GOAL := repro

setup: $(VENV)/requirements.done
setup-dev: $(VENV)/requirements-dev.done

$(VENV)/%.done: %.txt requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is %s; say make PYTHON=..." % sys.version.split()[0])'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "No virtual environment: install your system's python3-venv package."; exit 1; }
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

repro: setup
	@PYTHONPATH=src python -m tinybert.config.load
	@PYTHONPATH=src python -m tinybert.pipeline.dvc_repair
	dvc repro
	@cat reports/summary.txt
	@echo "Report: $(CURDIR)/reports/index.html"

# Most of it is the start of processes, so two workers, of one thread each.
test: setup-dev
	OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile

# At least 90 % of src, or it fails; the stages that tests start count too.
coverage: setup-dev
	OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --cov

# The property tests with 10,000 cases each, and what is marked long.
test-long: setup-dev
	OMP_NUM_THREADS=1 python -m pytest -n 2 -m "long or properties" --hypothesis-profile=long --durations=20

lint: setup-dev
	ruff check . && ruff format --check . && mypy

compare: setup
	@dvc exp show --only-changed --drop '.*/|metrics|.*yaml|Created|Executor|State'

ui: setup
	mlflow ui --host 127.0.0.1 --backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///$(CURDIR)/mlflow.db}

ask: setup
	@PYTHONPATH=src python -m tinybert.evaluate.ask "$$Q"

bench: setup
	PYTHONPATH=src python -m benchmarks $(BENCH)

profile:
	@test -f profiles/$(NAME).yaml || { echo "NAME=$(NAME): choose one of: $(basename $(notdir $(wildcard profiles/*.yaml)))"; exit 1; }
	@test "$(FORCE)" || git diff --quiet -- params.yaml || \
		{ echo "params.yaml has changes that are not committed: commit them, or say FORCE=1 to lose them."; exit 1; }
	cp profiles/$(NAME).yaml params.yaml

study: setup
	PYTHONPATH=src python -m tinybert.studies $(or $(NAME),"") $(ARGS)
