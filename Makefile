# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
STUDIES := studies/pyproject.toml
# Where it is set, every process compiles all of torch's Python anew: half of the time that the tests take.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow fuzz chaos bench lint wheels docs constraints format clean

demo: .venv/installed
	$(BIN)/narrowcast compare examples/demo.toml --out runs/demo --force

# While style and types are checked, the kernels are compiled: each worker of pytest would do it for itself. Of the
# three workers one waits for Flower's processes most of the time.
test: .venv/developed
	@$(BIN)/python tests/golden.py & $(MAKE) --no-print-directory lint wheels; ended=$$?; wait; exit $$ended
	$(BIN)/python -m pytest --numprocesses 3 --dist loadgroup

test-slow: .venv/developed
	$(BIN)/python -m pytest -m slow --durations 20

# Hostile messages at everything that reads bytes, and real processes killed at random; both print their seed.
fuzz: .venv/developed
	$(BIN)/python tests/fuzzing.py $(or $(COUNT),1000000) $(SEED)

chaos: .venv/developed
	$(BIN)/python tests/chaos.py $(or $(MINUTES),10) $(SEED)

bench: .venv/benched
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/many_clients.py --threads 1
	$(BIN)/python benchmarks/full_size.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/resnet_round.py
	$(BIN)/python benchmarks/local_steps.py
	$(BIN)/python benchmarks/narrow.py --threads 1
	$(BIN)/python benchmarks/ddp.py
	$(BIN)/python benchmarks/report.py

# Style, types, which room may import from which, and that every import is declared.
lint: .venv/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry . --config pyproject.toml
	cd studies && ../$(BIN)/deptry src

# Both distributions as people get them; the library's in an environment with none of the extras.
wheels: .venv/developed
	$(BIN)/python tests/wheels.py

# The generated parts of pages, and the API reference in site/; a test builds both and compares.
docs: .venv/developed
	$(BIN)/python docs/make.py

# What `make demo` and `make test` install, pinned: in an environment of its own, from the ranges of pyproject.toml.
constraints:
	$(PYTHON) -m venv .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet 'torch==2.13.0' '.[dev]' ./studies
	{ sed '/^[^#]/d' constraints.txt; .venv-constraints/bin/python -m pip freeze --all --exclude pip \
	  --exclude narrowcast --exclude narrowcast-studies | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-constraints

format: .venv/developed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "narrowcast needs Python 3.11 or newer")'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/python pyproject.toml constraints.txt
	@echo "installing into .venv (torch is large: the first time takes minutes)"
	@$(BIN)/python $(PIP) --editable '.[demo]'
	@touch $@

.venv/developed: .venv/python pyproject.toml $(STUDIES) constraints.txt
	@echo "installing into .venv (torch is large: the first time takes minutes)"
	@$(BIN)/python $(PIP) --editable '.[dev]' --editable ./studies
	@touch .venv/installed $@

# pfl without what only its accountants need: they ask for older versions than the pinned ones.
.venv/benched: .venv/developed
	@$(BIN)/python $(PIP) --no-deps pfl multiprocess dill prv-accountant dp-accounting dm-tree
	@touch $@

clean:
	rm -rf .venv .wheels site build studies/build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info studies/src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
