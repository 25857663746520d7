# make repro   everything: environment, pipeline on params.yaml, summary and report
# make test    environment and tests          make lint   style
# make ui      MLflow's page on this machine  make profile NAME=minilm   another scale's params.yaml
PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: setup setup-dev repro test lint ui profile
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
	dvc repro
	@cat reports/summary.txt
	@echo "Report: $(CURDIR)/reports/index.html"

test: setup-dev
	python -m pytest

lint: setup-dev
	ruff check . && ruff format --check .

ui: setup
	mlflow ui --host 127.0.0.1 --backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///$(CURDIR)/mlflow.db}

profile:
	@test -f profiles/$(NAME).yaml || { echo "NAME=$(NAME): choose one of: $(basename $(notdir $(wildcard profiles/*.yaml)))"; exit 1; }
	cp profiles/$(NAME).yaml params.yaml
