# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow bench lint format clean

demo: .venv/installed
	$(BIN)/narrowcast compare examples/demo.toml --out runs/demo --force

test: .venv/developed lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

test-slow: .venv/developed
	$(BIN)/python -m pytest -m slow --durations 20

bench: .venv/benched
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/many_clients.py --threads 1
	$(BIN)/python benchmarks/full_size.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/resnet_round.py
	$(BIN)/python benchmarks/local_steps.py
	$(BIN)/python benchmarks/ddp.py
	$(BIN)/python benchmarks/report.py

lint: .venv/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/developed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "narrowcast needs Python 3.11 or newer")'
	@echo "installing into .venv (torch is large: the first time takes minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --editable .
	@touch $@

.venv/developed: .venv/installed
	@$(PIP) --editable '.[dev]'
	@touch $@

.venv/benched: .venv/installed
	@$(PIP) --editable '.[bench]'
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
