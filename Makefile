# Everything starts from Python 3.11 and make: each goal makes the environment it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: demo test lint bench lowest soak clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# All that captions need: no torch.
$(VENV)/.user: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

# torch goes in first and by itself, so that no other package's range can choose another build of it.
$(VENV)/.dev: $(VENV)/.user
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	touch $@

demo: $(VENV)/.user
	$(BIN)/coscap caption examples/*.jpg -n 5 --html out/demo.html

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests with the oldest versions that pyproject.toml allows, in an environment of their own.
LOWEST := .venv-lowest
LOWEST_PIP := $(LOWEST)/bin/python -m pip install --disable-pip-version-check -q -c $(LOWEST)/lowest.txt
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python scripts/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST_PIP) torch
	$(LOWEST_PIP) -e '.[bulk,coco,detectors,export,heic,metrics,plots,serve,train]' pytest hypothesis httpx defusedxml
	$(LOWEST)/bin/python -m pytest

soak: $(VENV)/.dev
	$(BIN)/python scripts/soak.py --requests 20000

bench: $(VENV)/.dev
	@status=0; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || status=1; done; exit $$status

clean:
	rm -rf $(VENV) $(LOWEST) out dist build
