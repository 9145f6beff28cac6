# The contributor's interface. `make demo` and `make test` work in a clean clone with Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Real data for tests and reproductions, where it lies beside the checkout.
ifneq ($(wildcard ../shared/data),)
export TRIMTAB_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test format bench bench-peers account clean

demo: $(VENV)/installed
	$(BIN)/trimtab compare

test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/pytest -n 2

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The records of docs/performance.md, on a quiet machine.
bench: $(VENV)/installed
	$(BIN)/trimtab bench --out results/bench/bench.json
	$(BIN)/python benchmarks/details.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/page.py

# The records of docs/diagnosis.md; goes on where it stopped.
account: $(VENV)/installed
	$(BIN)/python benchmarks/advice.py

bench-peers: $(VENV)/installed
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/page.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis
