# Everything in .venv; each installation leaves a stamp there, so that a second run starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The oldest Python here, for the lowest versions: not every one of them has a wheel for the newest Python.
LOWEST := .venv-lowest
OLDEST = $(firstword $(foreach minor,10 11 12,$(shell for python in python3.$(minor) \
    $(HOME)/.pyenv/versions/3.$(minor).*/bin/python; do \
    $$python -c 'import ensurepip' 2>/dev/null && echo $$python && break; done)) $(PYTHON))

RUNS ?= 5
BESIDE ?= 1
SECONDS ?= 240

.PHONY: demo test unit judged network stuck handled hostile matrix calm bench post-mortem fuzz lint lowest clean

demo: $(VENV)/demo.stamp  ## a real broken job, diagnosed live
	$(BIN)/hangdoc demo $(ID)

# What computes, and what mostly waits, run side by side; then live jobs that stand still beside one another; and those
# whose pace is judged, or what is done to them, alone.
judged := matrix recordings left pasted flight_recorder_dumps report_page
JUDGED := $(judged:%=tests/integration/test_%.py)
NETWORK := tests/integration/test_fleet_network.py
handled := bad_input let_go at_once beds trial recorder fleet_kubectl fleet_slurm fleet_ssh
HANDLED := $(handled:%=tests/integration/test_%.py)
STUCK := stands_still

test: $(VENV)/test.stamp $(VENV)/system.stamp  ## every test, the live ones too; TESTS=... for some
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	$(MAKE) --jobs=3 --output-sync=target unit judged network
	$(MAKE) --jobs=2 --output-sync=target stuck handled
	$(BIN)/python -m pytest tests/integration $(patsubst %,--ignore=%,$(JUDGED) $(NETWORK) $(HANDLED)) -k 'not $(STUCK)'
endif

unit: $(VENV)/test.stamp $(VENV)/system.stamp  ## the tests of single modules
	$(BIN)/python -m pytest tests/unit

judged: $(VENV)/test.stamp $(VENV)/system.stamp  ## every capture, recording and heap of logs, judged again
	$(BIN)/python -m pytest $(JUDGED)

network: $(VENV)/test.stamp $(VENV)/system.stamp  ## every network playbook over real sshds on three hosts
	$(BIN)/python -m pytest $(NETWORK)

stuck: $(VENV)/test.stamp $(VENV)/system.stamp  ## every reproducer that stands still, live, gets its own diagnosis
	$(BIN)/python -m pytest tests/integration/test_reproducers.py -k $(STUCK)

handled: $(VENV)/test.stamp $(VENV)/system.stamp  ## wrong input, wrong surroundings, test beds, ssh, Slurm and Kubernetes
	$(BIN)/python -m pytest $(HANDLED)

hostile: $(VENV)/test.stamp $(VENV)/system.stamp  ## hangdoc as root beside hostile targets of another user
	$(BIN)/python -m pytest tests/hostile

matrix: $(VENV)/test.stamp $(VENV)/system.stamp  ## every reproducer and variant, live, RUNS times (BESIDE at once): what is said of each
	$(BIN)/python tests/matrix.py --runs $(RUNS) --beside $(BESIDE) $(if $(OUT),--out $(OUT)) $(ID)

calm: $(VENV)/test.stamp $(VENV)/system.stamp  ## every healthy job, watched for SECONDS: nothing may be raised
	$(BIN)/python tests/calm.py --seconds $(SECONDS) $(JOB)

bench: $(VENV)/test.stamp  ## how fast, how small, and what it costs the job
	missed=0; for script in stack_merge many_ranks logs verdict_time look_cost footprint; do \
	    PYTHONPATH=.:tests $(BIN)/python -m benchmarks.$$script || missed=1; done; exit $$missed

post-mortem: $(VENV)/test.stamp $(VENV)/system.stamp  ## every reproducer until its timeout, then the report on what is left in OUT
	PYTHONPATH=.:tests $(BIN)/python -m benchmarks.post_mortem --out $(or $(OUT),post-mortem) $(ID)

fuzz: $(VENV)/test.stamp  ## every reader on mutated samples, for SECONDS
	PYTHONPATH=.:tests $(BIN)/python tests/fuzz_readers.py --seconds $(SECONDS)

lint: $(VENV)/test.stamp  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What needs torch is skipped here; make test runs it, and fails where it cannot.
lowest: $(LOWEST)/lowest.stamp  ## the unit tests without torch, with the lowest allowed version of each dependency
	env -u HANGDOC_NO_SKIP $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal tests/unit

clean:  ## remove what was installed and cached
	rm -rf $(VENV) $(LOWEST) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "hangdoc needs Python 3.10 or newer: make PYTHON=python3.x"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	    { rm -rf $(VENV); echo "no virtual environment could be made: install your system's python3-venv"; exit 1; }

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[demo]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[test]'
	@touch $@ $(VENV)/demo.stamp

$(LOWEST)/lowest.stamp: pyproject.toml tests/lowest.py
	rm -rf $(LOWEST)
	$(OLDEST) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install packaging tomli
	$(LOWEST)/bin/python tests/lowest.py >$(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install \
	    --constraint $(LOWEST)/constraints.txt --editable '.[unit]'
	@touch $@

# The network tests need namespaces and packet filters, those of the fleet sshd and Slurm, the compile test a C++ compiler.
$(VENV)/system.stamp: tests/system.sh | $(BIN)/python
	@sh tests/system.sh
	@touch $@
