# Everything here installs what it needs into .venv, once, and again when pyproject.toml or constraints.txt changes.
# A target that needs less installs less: the demo has no use for a type checker.

PYTHON ?= python3
ARVIZ_PYTHON ?= python3.12
ARGS ?=
# Exact versions, for one Python and one system; on others, or with CONSTRAINTS=/dev/null, the newest are installed.
CONSTRAINTS ?= constraints.txt

BIN := .venv/bin
# Warnings about the machine's own package locations are noise here; errors are not, and they still end the run.
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq

.DEFAULT_GOAL := help
.PHONY: help demo test arviz lint types docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.demo  ## the paper's Figure 1: both modes found by PGPS, one missed by Langevin dynamics
	@$(BIN)/pgps demo $(ARGS)

test: .venv/.test  ## run the tests; one file: make test ARGS=tests/paths
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

arviz: .venv-arviz/.installed  ## read results with the newest ArviZ (1.x needs Python 3.12; the tests have 0.23 on 3.11)
	@.venv-arviz/bin/python -c 'import arviz; print("ArviZ", arviz.__version__)'
	@.venv-arviz/bin/python -m pytest -q tests/adapters/test_datatree.py

lint: .venv/.dev  ## check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/.dev  ## check types
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

docs: .venv/.dev  ## build the documentation into docs/_build/html; a warning is an error
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

clean:  ## remove caches and built documents (rm -rf .venv starts over altogether)
	rm -rf build dist docs/_build .pytest_cache .ruff_cache .hypothesis
	find src tests docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: one per set of packages.
.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "pgps needs Python 3.11 or later, and '$(PYTHON)' is not one; name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv-arviz/.installed: pyproject.toml
	@$(ARVIZ_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
		{ echo "ArviZ 1.x needs Python 3.12 or later, and '$(ARVIZ_PYTHON)' is not one; name another: make ARVIZ_PYTHON=python3.13 arviz" >&2; exit 1; }
	@$(ARVIZ_PYTHON) -m venv .venv-arviz
	@echo "installing pgps[arviz,report] into .venv-arviz with $$(.venv-arviz/bin/python --version)"
	@.venv-arviz/bin/python -m pip --disable-pip-version-check install -qq -e '.[arviz,report]' 'arviz>=1' pytest
	@touch $@

.venv/.demo: EXTRAS := report,progress
.venv/.test: EXTRAS := test
.venv/.dev: EXTRAS := dev
.venv/.dev: HAS := .venv/.test .venv/.demo
.venv/.demo .venv/.test .venv/.dev: pyproject.toml $(CONSTRAINTS) | .venv/.created
	@echo "installing pgps[$(EXTRAS)] into .venv: a few minutes the first time"
	@$(PIP) -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@ $(HAS)
