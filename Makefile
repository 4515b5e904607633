# Every target makes .venv by itself; nothing but Python (3.10 or newer) and make is needed.
PYTHON ?= python3
SEED ?= 1
MINUTES ?= 10
MUTANTS ?= 5000000
KILLS ?= 2000
BURN_VERSIONS ?= 0.19 0.20 0.21 0.22 0.23-pre

BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test docs lint types contracts wheel bench fuzz fuzz-safetensors fuzz-pytorch kill interop interop-all matrix bench-burn fuzz-interop clean

demo: $(INSTALLED)
	$(BIN)/python docs/demo.py

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto

# The documentation as a site in build/docs; a link that leads nowhere is an error.
docs: $(INSTALLED)
	$(BIN)/python docs/site.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

contracts: $(INSTALLED)
	$(BIN)/lint-imports

wheel: $(INSTALLED)
	$(BIN)/python .ci/test_wheel.py

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

fuzz: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.run --mutants $(MUTANTS) --seed $(SEED) --minutes $(MINUTES)

fuzz-safetensors: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.run --format safetensors --mutants $(MUTANTS) --seed $(SEED) --minutes $(MINUTES)

fuzz-pytorch: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.pytorch --mutants $(MUTANTS) --seed $(SEED) --minutes $(MINUTES) --jobs 2
	$(BIN)/python -m tests.fuzz.pytorch --sequences 4
	$(BIN)/python -m tests.fuzz.pytorch --random 2000 --seed $(SEED)

kill: $(INSTALLED)
	$(BIN)/python tests/crash/kill.py --kills $(KILLS) --seed $(SEED) --minutes $(MINUTES)

# Against real Burn: Rust is needed as well, and the first run builds Burn (minutes). See tests/interop.
interop: $(INSTALLED)
	$(BIN)/python -m pytest -n auto tests/interop

interop-all: $(INSTALLED)
	BURN_VERSIONS="$(BURN_VERSIONS)" $(BIN)/python -m pytest -n auto tests/interop

matrix: $(INSTALLED)
	cd tests && ../$(BIN)/python -m interop.matrix

bench-burn: $(INSTALLED)
	$(BIN)/python -m benchmarks --subject burn

fuzz-interop: $(INSTALLED)
	cd tests && ../$(BIN)/python -m interop.fuzz --seed $(SEED)

$(INSTALLED): pyproject.toml requirements/test.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . -r requirements/test.txt
	touch $(INSTALLED)

clean:
	rm -rf .venv dist build benchmarks/results
