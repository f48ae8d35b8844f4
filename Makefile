# `make demo` and `make test` do all the set-up themselves: Python 3.11+, git and make are enough.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
EXTRAS := spark server nats grpc quic otel objects hsm snark timestamp iceberg test
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all test-spark-versions check bench torture simulate mutants vectors lock docs clean console

demo: $(READY)  ## run the main job on sample data
	@$(BIN)/ropewalk demo

test: $(READY)  ## the fast lane, at most 7 minutes on two cores; report in build/test.xml
	$(PYTEST) -m "not slow" --junitxml=build/test.xml

test-all: $(READY)  ## the slow lane, all that `make test` leaves out; report in build/test-all.xml
	$(PYTEST) -m slow --junitxml=build/test-all.xml tests
	$(PYTEST) -m "not slow" --hypothesis-profile thorough tests/property/test_jcs_differential.py

test-spark-versions: $(READY)  ## source and ingest on PySpark 4.0 to 4.3, each installed for its tests; VERSIONS="4.1" for some
	$(BIN)/python -m tests.spark_versions $(VERSIONS)

check: $(READY)  ## lint, types, layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py
	$(BIN)/python -m vectors.generate --check
	$(BIN)/python docs/generate_cli.py --check

bench: $(READY)  ## ours beside its peers; `make bench ONLY="jcs merkle"` for some, QUICK=1 for small sizes
	$(BIN)/python -m bench $(ONLY) $(if $(QUICK),--quick)

torture: $(READY)  ## long reliability runs; reports land in build/
	$(BIN)/python -m tests.torture $(ONLY)

simulate: $(READY)  ## power cuts (STATES per engine) and seeded worlds; STATES=1000 MINUTES=10 SEED=7 ONLY=ledger; report in build/simulate.json
	$(BIN)/python -m tests.sim $(ONLY) $(if $(STATES),--states $(STATES)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

mutants: $(READY)  ## break each clause of docs/status.md; its tests must notice; AREA=gitlog, ROW=S0-5 for some
	$(BIN)/python -m tests.mutants $(if $(AREA),--area $(AREA)) $(if $(ROW),--row $(ROW))

vectors: $(READY)  ## write the generated vectors again
	$(BIN)/python -m vectors.generate

docs: $(READY)  ## write the generated pages again, and build the site into build/site
	for page in cli http errors metrics python; do $(BIN)/python docs/generate_$$page.py || exit 1; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

console:  ## build the web console again; its files are committed
	cd console && npm ci --no-audit --no-fund && npm run build

lock: $(READY)  ## pin every dependency again
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m uv pip compile --quiet pyproject.toml $(EXTRAS:%=--extra %) --generate-hashes --no-emit-index-url \
	  --universal --python-version 3.11 --output-file requirements.lock

$(READY): requirements.lock pyproject.toml hatch_build.py $(wildcard src/ropewalk/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ropewalk needs Python 3.11 or newer; name one with make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

clean:  ## remove what make made
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
