# The commands of a developer. Needs only python3 (3.11 to 3.13), make and git: the first target makes `.venv` by itself.
# ARGS goes to the command: `make demo ARGS=--interactive`, `make test ARGS="tests/unit -x"`, `make bench ARGS=append`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SYNCED := $(VENV)/.synced
ARGS ?=
TEST_PROCESSES ?= 2
# A package index that pip was told of by its variable holds for uv too; uv has its own names for it.
export UV_DEFAULT_INDEX ?= $(or $(UV_INDEX_URL),$(PIP_INDEX_URL))
ifeq ($(UV_DEFAULT_INDEX),)
unexport UV_DEFAULT_INDEX
endif

.PHONY: help demo up doctor test check bench drill lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

demo: $(SYNCED)  ## the main job on real input, end to end, with the embedded servers
	@$(BIN)/python manage.py demo $(ARGS)

up: $(SYNCED)  ## the whole kernel in the foreground, with the embedded servers; Ctrl-C stops all of it
	@exec $(BIN)/python manage.py up $(ARGS)

doctor: $(SYNCED)  ## what is reachable, what is not, and what to do
	@$(BIN)/python manage.py doctor $(ARGS)

test: $(SYNCED)  ## all tests, on real servers
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(ARGS)

check: $(SYNCED)  ## style, types, import rules, Django's checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py check

bench: $(SYNCED)  ## measure, beside limits measured in the same run: make bench ARGS="append --json"
	@$(BIN)/python manage.py bench $(ARGS)

drill: $(SYNCED)  ## break each row of the failure table on a running stack, and tell what was observed
	@$(BIN)/python manage.py drill $(ARGS)

lock: $(SYNCED)  ## pin the newest allowed versions, with hashes, in requirements*.txt
	$(BIN)/uv pip compile -q --universal --upgrade --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile -q --universal --upgrade --generate-hashes --no-emit-index-url --no-header --extra dev \
		--constraint requirements.txt pyproject.toml -o requirements-dev.txt

clean:  ## remove the environment and caches; the data of the embedded servers, var/, stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './var/*' -prune -exec rm -rf {} +

# uv itself comes with the hash that requirements-dev.txt gives; what every process imports is compiled once, here,
# and not by seven processes at the same time at the first start.
COMPILED := django celery kombu redis pydantic pydantic_settings psycopg psycopg_pool temporalio ninja unfold uvicorn httpx2 mcp
$(SYNCED): requirements-dev.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Debian keeps this in a package: apt-get install python3-venv"; exit 1; }
	@awk '/^uv==/ {on = 1} on {print} on && !/\\$$/ {exit}' requirements-dev.txt > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.txt
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.txt
	@$(BIN)/python -m compileall -q -j 0 $(addprefix $(VENV)/lib/python3.*/site-packages/,$(COMPILED))
	@touch $@
