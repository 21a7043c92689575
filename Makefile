# What a newcomer needs: make demo, make test; before a merge: make test-all. They make .venv if need be.

PYTHON ?= python3.11
BIN := .venv/bin
DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test test-all lint types unit every format wheel coverage bench bench-peers faults campaign soak docs release ledger \
	clean

demo: .venv/ready
	$(BIN)/cflag run digits --methods cflag,finetune --seeds 1,2,3 --out $(DEMO)
	$(BIN)/cflag report $(DEMO) --out $(DEMO)/report.html --title "Split-Digits: C-FLAG and fine-tuning"
	@echo "open it in a browser: $(DEMO)/report.html"

# A few minutes on two cores; test-all adds real fleets, the stores of loggers, a browser, and long runs. mypy has one core
# at most, so it goes beside the tests.
test: lint
	+$(MAKE) -j2 types unit

test-all: lint
	+$(MAKE) -j2 types every

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

unit: .venv/ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not (fleet or loggers or browser or slow)"

# One process more than two cores: fleets wait more than they compute.
every: .venv/ready
	$(BIN)/pytest -n 3 --dist worksteal

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The sdist, and the wheel made of it, in dist/; tests/test_wheel.py tries them as a stranger would.
wheel: .venv/ready
	$(BIN)/python -m build --no-isolation

# Which lines tests run that need nothing but this machine's processor: htmlcov/index.html; slower than make unit.
coverage: .venv/ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not (fleet or loggers or browser or slow)" --cov --cov-report=html --cov-report=term

# Speed: ours and the bare loop, about eight minutes on a quiet machine; with the peers a quarter of an hour.
bench: .venv/ready
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.shares

bench-peers: .venv/ready .venv-peers/ready
	$(BIN)/python -m benchmarks.run J J2 J3 R --peers .venv-peers/bin/python

# Breaks a real deployment on this machine in eight ways, about twenty minutes.
faults: .venv/ready
	$(BIN)/python -m benchmarks.faults

# A thousand faults where they are cheap: half an hour on a quiet machine.
campaign: .venv/ready
	$(BIN)/python -m benchmarks.campaign

# 10,000 rounds, 100 tasks, 2,000 clients, 300 questions to a real fleet: what grows? A quarter of an hour.
soak: .venv/ready
	$(BIN)/python -m benchmarks.soak

# The documentation site; a warning is an error. Open docs/_build/html/index.html.
docs: .venv/ready
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

# What a release writes down before it is tagged: docs/release.md.
release: .venv/ready
	@test -n "$(VERSION)" || { echo "which? make release VERSION=1.2.3"; exit 2; }
	$(BIN)/python -m tools.release $(VERSION)

# Writes docs/results.md and all pictures of it anew from the summaries in docs/results; cflag ledger DIR takes in new ones.
ledger: .venv/ready
	$(BIN)/cflag ledger
	$(BIN)/python docs/_ext/forgetting.py

.venv-peers/ready: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	touch $@

# torch first and alone: with it in place nothing asks for another build.
.venv/ready: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "cflag wants Python 3.11; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-peers .mypy_cache .pytest_cache .ruff_cache .coverage* htmlcov build dist
