# `make test` and `make demo` set up everything they need in .venv; the second call is fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and benchmarks on the published image sets run where the images are.
ifneq ($(wildcard ../shared/data/MANIFEST.json),)
export NLRN_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test check docs browser test-gpu lint bench-cpu bench-classic bench-gpu clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# The slow tests measure time and memory, or use all cores themselves: one after the other.
test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto
	$(BIN)/python -m pytest -m slow

# Two minutes on two cores: everything but the slow tests, a process for each core.
check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto

# The documentation site, into site/; reads nothing from elsewhere.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# On a machine that has its own packages nothing is installed: make test-gpu PYTHON_GPU=python3
test-gpu: $(if $(PYTHON_GPU),,$(STAMP))
	PYTHONPATH="$(CURDIR)/src" $(or $(PYTHON_GPU),$(BIN)/python) -m pytest -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of the web page want a browser; without one they are skipped, and nothing else is lost.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null && exit 0; \
	done; \
	echo "installing chromium for the tests of the web page"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		(export DEBIAN_FRONTEND=noninteractive; timeout 120 apt-get update -qq; \
		timeout 600 apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1; \
	fi; \
	command -v chromium >/dev/null || echo "no chromium: these tests will be skipped"

bench-cpu: $(STAMP)
	$(BIN)/python benchmarks/cpu_restore.py

bench-classic: $(STAMP)
	# as the command line has it: threads that do not spin for long
	GOMP_SPINCOUNT=20000 $(BIN)/python benchmarks/classic.py

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu/run.py --data "$(NLRN_DATA)"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev,bench]'
	touch $@

clean:
	rm -rf $(VENV) demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis
