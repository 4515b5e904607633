# Every target makes its own environment; nothing but Python (3.10 or newer) and make is needed.
PYTHON ?= python3
SEED ?= 1
MINUTES ?= 10
MUTANTS ?= 5000000
KILLS ?= 2000
READS ?= 1000000
CASES ?= 100000
JOBS ?= 1
BURN_VERSIONS ?= 0.19 0.20 0.21 0.22 0.23-pre

# Hundreds of tests start Python: each would compile the package again where a machine forbids to write bytecode.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
INSTALLED := .venv/installed
DEMO := .venv-demo
PIP := -m pip install --disable-pip-version-check

.PHONY: demo test test-rest test-all docs architecture lint types contracts wheel bench fuzz fuzz-safetensors fuzz-scales fuzz-dcp fuzz-pytorch fuzz-pickles fuzz-compose mutants kill soak-shards architectures classes everyday interop \
  interop-all matrix bench-burn fuzz-interop clean

# The main job, in an environment of its own with the package and its dependencies: no torch, nothing for tests.
demo: $(DEMO)/installed
	@$(DEMO)/bin/python docs/demo/demo.py

# The suite that everybody runs. What it leaves out is counted at its end; test-rest runs exactly that, test-all both.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadgroup --tier quick

test-rest: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadgroup --tier rest

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -n auto

# The documentation as a site in build/docs; a broken link is an error.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "built build/docs/index.html"

# The picture in docs/architecture.md, drawn from the imports.
architecture: $(INSTALLED)
	$(BIN)/python docs/tools/architecture.py

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
	$(BIN)/python -m tests.fuzz.pickles --cases $(MUTANTS) --seed $(SEED) --minutes $(MINUTES)

fuzz-safetensors: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.run --format safetensors --mutants $(MUTANTS) --seed $(SEED) --minutes $(MINUTES)

fuzz-scales: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.scales --cases $(MUTANTS) --seed $(SEED) --minutes $(MINUTES) --jobs $(JOBS)

fuzz-dcp: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.dcp --cases $(MUTANTS) --seed $(SEED) --minutes $(MINUTES) --jobs $(JOBS)

fuzz-pytorch: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.pytorch --mutants $(MUTANTS) --seed $(SEED) --minutes $(MINUTES) --jobs 2
	$(BIN)/python -m tests.fuzz.pytorch --sequences 4
	$(BIN)/python -m tests.fuzz.pytorch --random 2000 --seed $(SEED)

# Random pickles through the tracer of scan and through Python's own unpicklers.
fuzz-pickles: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.pickles --cases $(MUTANTS) --seed $(SEED) --minutes $(MINUTES)

# Random compositions of contents, files, options, targets and verbs, against a slow reference.
fuzz-compose: $(INSTALLED)
	$(BIN)/python -m tests.compose.run --cases $(CASES) --seed $(SEED) --jobs $(JOBS)

# Random changes of the library that the quick tests must notice: 300 in about 9 minutes with JOBS=16.
mutants: $(INSTALLED)
	PYTHONPATH=src $(BIN)/python -m tests.mutants --count 300 --seed $(SEED) --jobs $(JOBS)

kill: $(INSTALLED)
	$(BIN)/python tests/crash/kill.py --kills $(KILLS) --seed $(SEED) --minutes $(MINUTES)

# About 140 random models of torchvision, timm, transformers and diffusers, to Burn's layout and back.
architectures: $(INSTALLED)
	$(BIN)/python tests/real/architectures.py

# The page docs/everyday.md: every kind of checkpoint × everything that can be done with it.
everyday: $(INSTALLED)
	$(BIN)/python tests/real/everyday.py

# The table of classes known by name, from the installed libraries: what they compute decides (minutes).
classes: $(INSTALLED)
	$(BIN)/python tests/real/classes.py

# Reads of a sharded set while two processes save it: none may mix two saves.
soak-shards: $(INSTALLED)
	$(BIN)/python tests/soak/shards.py --reads $(READS) --seed $(SEED)

# Against real Burn: Rust is needed as well, and the first run builds Burn (minutes). See tests/interop.
interop: $(INSTALLED)
	$(BIN)/python -m pytest -n auto tests/interop tests/gallery

interop-all: $(INSTALLED)
	BURN_VERSIONS="$(BURN_VERSIONS)" GALLERY=all $(BIN)/python -m pytest -n auto tests/interop tests/gallery

matrix: $(INSTALLED)
	cd tests && ../$(BIN)/python -m interop.matrix

bench-burn: $(INSTALLED)
	$(BIN)/python -m benchmarks --subject burn

fuzz-interop: $(INSTALLED)
	cd tests && ../$(BIN)/python -m interop.fuzz --seed $(SEED)

$(INSTALLED): pyproject.toml requirements/test.txt requirements/docs.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) --quiet --editable . -r requirements/test.txt -r requirements/docs.txt
	touch $(INSTALLED)

$(DEMO)/installed: pyproject.toml
	@echo "making $(DEMO): an environment with burnstore and its dependencies, about 100 MB, without PyTorch"
	@$(PYTHON) -m venv $(DEMO)
	@echo "installing burnstore from this folder (pip shows what it downloads)"
	@$(DEMO)/bin/python $(PIP) --progress-bar off --no-compile --editable .
	@touch $(DEMO)/installed

clean:
	rm -rf .venv $(DEMO) dist build benchmarks/results
