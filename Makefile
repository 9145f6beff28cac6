# The contributor's interface. `make demo` and `make test` work in a clean clone with Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Real data for tests and reproductions, where it lies beside the checkout.
ifneq ($(wildcard ../shared/data),)
export TRIMTAB_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-newest test-flower test-reproduce test-federation soak test-cluster test-package test-docs test-site docs lock coverage mutants kernel test-kernel \
	format reproduce bench bench-peers account clean

demo: $(VENV)/installed
	$(BIN)/trimtab compare --algorithms sgd,fedavg,scaffold --minutes 0.5 --jobs 2

# Ruff, mypy --strict, and the fast suite: theorems, the NumPy oracle, mistakes of other systems, commands, pages.
test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src papers/src
	$(BIN)/pytest -n 2 --dist worksteal

# Small versions of the reproductions, and what they claim; on real data where there are any: under 4 minutes.
test-reproduce: $(VENV)/installed-dev
	$(BIN)/pytest -n 2 -m reproduce tests/papers

# Servers, sites, keys and sockets as they are used, killed at every durable write: under 12 minutes.
test-federation: $(VENV)/installed-dev
	$(BIN)/pytest -n 3 -m federation tests/federation tests/flower

# The tests that take long, then hours of random kills, stops, network faults and full disks, and their replay; SOAK="--minutes 240".
SOAK ?= --minutes 240
soak: $(VENV)/installed-dev
	$(BIN)/pytest -n 2 -m soak
	$(BIN)/python -m tests.federation.chaos $(SOAK)

# Clusters of Ray with two or three nodes on this machine, which are killed and return: under 5 minutes.
test-cluster: $(VENV)/installed-dev
	$(BIN)/pytest -n 0 -m cluster tests/cluster

# Wheel and sdist, built and installed, with all extras in one environment: under 6 minutes.
test-package: $(VENV)/installed-dev
	$(BIN)/pytest -m package tests/package

# The documentation against the code; `make test` does it, too.
test-docs: $(VENV)/installed-dev
	$(BIN)/pytest -n 2 tests/docs tests/papers/test_page.py

# The documentation site, into site/: under a minute.
docs: $(VENV)/installed-dev
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The documentation site, opened in a browser: links, search, phones, accessibility: under 4 minutes.
test-site: $(VENV)/installed-dev
	$(BIN)/pytest -n 0 -m site tests/docs/test_site.py

# The packages that trimtab extends, at their newest versions, in an environment of their own: under 10 minutes.
NEWEST := build/newest
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		torch --editable ".[dev,federation,pandas,datasets,cluster,lora,lightning]" --editable papers
	$(NEWEST)/bin/pytest -n 2 tests/torch tests/sklearn tests/problems/test_hugging_face.py \
		tests/docs/test_bring_your_own_loop.py tests/docs/test_scikit_learn.py
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade flwr
	$(NEWEST)/bin/pytest -n 0 -m "not federation" tests/flower tests/docs/test_from_flower.py \
		tests/federation/test_flower_names.py

# Apps of Flower in its simulation on Ray, on the Flower that is pinned: under 5 minutes.
test-flower: $(VENV)/installed-dev
	$(BIN)/pytest -n 0 -m weekly tests/flower

# What the extras bring with them, written into the second part of constraints.txt; and the extra federation with hashes.
PIP_TOOLS := build/pip-tools
lock: $(VENV)/installed-dev
	$(BIN)/python -m tests.package.lock
	$(PYTHON) -m venv $(PIP_TOOLS)
	$(PIP_TOOLS)/bin/python -m pip install --quiet pip-tools
	$(PIP_TOOLS)/bin/pip-compile --quiet --generate-hashes --constraint constraints.txt --extra federation \
		--unsafe-package torch --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
		--no-annotate --strip-extras --output-file requirements-federation.txt pyproject.toml

# How much of src and papers/src the fast suite and the reproductions run, child processes included, into results/coverage.json; TESTS="tests/core" for a part.
coverage: $(VENV)/installed-dev
	$(BIN)/python benchmarks/covered.py $(TESTS)

# Mistakes of one place in algorithms and protocol, and which test rejects each: hours; it goes on where it stopped.
mutants: $(VENV)/installed-dev
	nice -n 15 $(BIN)/python -m tests.mutants.run

# The compiled kernel, in place; `make demo` builds it too, where there is a compiler.
kernel: $(VENV)/installed
	$(BIN)/python setup.py --quiet build_ext --inplace --force
	$(BIN)/python -c "import sys; from trimtab.compute.kernel import library; sys.exit(library.why_not())"

# The kernel's tests under the address and undefined-behaviour sanitisers of gcc: under 4 minutes.
SANITISED := build/sanitised
test-kernel: $(VENV)/installed-dev
	rm -rf $(SANITISED) && mkdir -p $(SANITISED) && cp -r src $(SANITISED)
	rm -f $(SANITISED)/src/trimtab/compute/kernel/_kernels*
	gcc -shared -fPIC -g -O1 -ffast-math -pthread -fsanitize=address,undefined -fno-sanitize-recover=all \
		src/trimtab/compute/kernel/kernels.c -o $(SANITISED)/src/trimtab/compute/kernel/_kernels.so -lm
	PYTHONPATH=$(SANITISED)/src ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
		TRIMTAB_SANITISED=$(SANITISED) $(BIN)/pytest -n 2 tests/compute tests/simulation/test_native.py

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# All tables and figures of docs/papers: hours; it goes on where it was interrupted.
reproduce: $(VENV)/installed
	$(BIN)/trimtab reproduce figure3 theorem2 table3 table4 table5 concrete emnist400 clients mime \
		mvr bias speedup lsa contraction local-steps dane nonconvex unequal
	$(BIN)/python -m trimtab_papers.docs

# The records of docs/performance.md, on a quiet machine; goes on where it stopped, so remove old ones first.
bench: $(VENV)/installed
	$(BIN)/trimtab bench --out results/bench/bench.json --resume
	$(BIN)/python benchmarks/comparisons.py
	$(BIN)/python benchmarks/details.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/page.py

# The records of docs/diagnosis.md; goes on where it stopped.
account: $(VENV)/installed
	$(BIN)/python benchmarks/advice.py

bench-peers: $(VENV)/installed
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/page.py

# Both distributions in one command: pip then does not look for the other one in a registry.
$(VENV)/installed: pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable . --editable papers
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) --editable ".[dev,docs,papers,federation,pandas,datasets,cluster,lora,lightning,tensorboard,mlflow,onnx]" --editable papers
	touch $@

clean:
	rm -rf $(VENV) runs build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
