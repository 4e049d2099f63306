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

# Real frameworks from PyPI, a few gigabytes: apart from what CI installs.
FRAMEWORKS := .venv-frameworks

RUNS ?= 5
BESIDE ?= 1
SECONDS ?= 240
KILLS ?= 1000

# WRITE=docs/benchmarks.md: a benchmark also puts what it prints into its section of that page.
BENCHMARK = $(BIN)/python -m tests.benchmarks.publish $(if $(WRITE),--write $(WRITE))
TESTED := compiled $(VENV)/system.stamp
PYTEST := $(BIN)/python -m pytest
# Three for two cores: many tests wait, for a process that starts or for a limit that passes.
SIDE_BY_SIDE := --numprocesses 3 --dist worksteal

.PHONY: demo test test-live live-jobs live-soak frameworks hostile slow kills soak matrix calm bench black-box post-mortem pasted terms fuzz lint lowest docs clean compiled

demo: $(VENV)/demo.stamp  ## a real broken job, diagnosed live
	$(BIN)/hangdoc demo $(ID)

# Tests marked `quiet` judge the pace of a job, so they run one by one.
test: $(TESTED)  ## unit tests, replays and a selection of live jobs, in minutes; TESTS=... for some tests of any kind
ifdef TESTS
	$(PYTEST) $(TESTS)
else
	$(PYTEST) $(SIDE_BY_SIDE) -m 'not live or selection and not quiet'
	$(PYTEST) tests/live -m 'selection and quiet'
endif

test-live: $(TESTED)  ## every other live job: reproducers, healthy jobs, ssh, Slurm, networks, hostile targets, a soak
	$(MAKE) --no-print-directory --jobs 2 live-jobs live-soak

# First those that run one by one, and leave a core to the soak; then four at once, since most of them wait.
live-jobs: $(TESTED)
	$(PYTEST) tests/live -m 'quiet and not (selection or frameworks)'
	$(PYTEST) tests/live $(SIDE_BY_SIDE) --numprocesses 4 -m 'not (selection or quiet or soak or frameworks)'

live-soak: $(TESTED)  # half a core for 20 minutes
	$(PYTEST) tests/live -m soak

frameworks: $(FRAMEWORKS)/installed.stamp  ## jobs of real frameworks, and the score; JOB='name or name', KEEP=1 records, OUT=wrong verdicts
	$(if $(KEEP),KEEP=1) $(if $(OUT),OUT=$(OUT)) $(FRAMEWORKS)/bin/python -m pytest tests/live/frameworks --numprocesses 0 \
	    $(if $(JOB),-k '$(JOB)')

slow: $(TESTED)  ## the slowest of the unit tests and replays, or of TESTS
	$(PYTEST) $(or $(TESTS),tests/unit tests/replay) --durations 50

hostile: $(TESTED)  ## hangdoc as root beside hostile targets of another user
	$(PYTEST) tests/live -m hostile

kills: $(TESTED)  ## kill -9 of the daemon KILLS times while it examines a rank: the rank must go on
	HANGDOC_KILLS=$$((2 * $(KILLS))) $(PYTEST) tests/live/hostile/test_holds.py -k daemon -rP

soak: $(TESTED)  ## the daemon for SECONDS: jobs come and go, hang and are killed, disks fill, receivers fail
	$(BIN)/python -m tests.tools.soak --seconds $(SECONDS)

matrix: $(TESTED)  ## every reproducer and variant, live, RUNS times (BESIDE at once): what is said of each
	$(BENCHMARK) matrix --runs $(RUNS) --beside $(BESIDE) $(if $(OUT),--out $(OUT)) $(ID)

calm: $(TESTED)  ## every healthy job, watched for SECONDS: nothing may be raised
	$(BENCHMARK) calm --seconds $(SECONDS) $(JOB)

bench: compiled  ## how fast, how small, and what it costs the job
	missed=0; for script in stack_merge many_ranks logs verdict_time detection look_cost step_time footprint daemon_cost; do \
	    $(BENCHMARK) $$script || missed=1; done; exit $$missed

black-box: $(TESTED)  ## hung jobs, killed RUNS times in each way: the cause must be on disk
	$(BENCHMARK) black_box --runs $(RUNS) --beside $(BESIDE)

post-mortem: $(TESTED)  ## every reproducer until its timeout, then the report on what is left in OUT
	$(BENCHMARK) post_mortem --out $(or $(OUT),post-mortem) $(ID)

pasted: compiled  ## the score on pasted fragments; NAME='name or pattern', GROUP=own, MUTATIONS=1, SHOW=1
	$(BENCHMARK) pasted $(if $(NAME)$(MUTATIONS),,--held-out) $(if $(GROUP),--group $(GROUP)) $(if $(MUTATIONS),--mutations) $(if $(SHOW),--show) $(NAME)

terms: $(VENV)/test.stamp  ## what the words of a text tell of its cause, judged on unknown authors; LEARN=1 learns the weights
	$(if $(LEARN),$(BIN)/python -m tests.tools.learn_terms --learn,$(BENCHMARK) learn_terms)
	$(if $(LEARN),$(BIN)/python -m tests.tools.learn_signs --learn,$(BENCHMARK) learn_signs)

fuzz: compiled  ## every reader on mutated samples, for SECONDS
	$(BIN)/python -m tests.tools.fuzz_readers --seconds $(SECONDS)

lint: $(VENV)/test.stamp  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/docs.stamp  ## the documentation as a site, in site/
	$(BIN)/python docs/tools/playbook_index.py
	$(BIN)/python docs/tools/message_index.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# What needs torch is skipped here; make test runs it, and fails where it cannot. The readers of texts, a fifth of the
# time, use no dependency that the tests of reports do not.
lowest: $(LOWEST)/lowest.stamp  ## the quick unit tests without torch, with the lowest allowed version of each dependency
	env -u HANGDOC_NO_SKIP $(LOWEST)/bin/python -m pytest $(SIDE_BY_SIDE) -m 'not slow' tests/unit \
	    --ignore tests/unit/postmortem/readers

clean:  ## remove what was installed, built and cached
	rm -rf $(VENV) $(LOWEST) $(FRAMEWORKS) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip compiles what it installs, but not what it installs as editable: a second of each start where Python may not write.
compiled: $(VENV)/test.stamp
	@$(BIN)/python -m compileall -q hangdoc playbooks probes tests

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

$(LOWEST)/lowest.stamp: pyproject.toml tests/tools/lowest.py
	rm -rf $(LOWEST)
	$(OLDEST) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install packaging tomli
	$(LOWEST)/bin/python tests/tools/lowest.py >$(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install \
	    --constraint $(LOWEST)/constraints.txt --editable '.[unit]'
	@touch $@

$(FRAMEWORKS)/installed.stamp: pyproject.toml tests/live/frameworks/requirements.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check --quiet install \
	    --requirement tests/live/frameworks/requirements.txt --editable '.[unit]'
	TORCH_EXTENSIONS_DIR=$(FRAMEWORKS)/extensions PATH="$(FRAMEWORKS)/bin:$$PATH" $(FRAMEWORKS)/bin/python -c \
	    'from deepspeed.accelerator import get_accelerator as a; a().create_op_builder("ShareMemCommBuilder").load()'
	@touch $@

$(VENV)/docs.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[docs]'
	@touch $@

# The network tests need namespaces and packet filters, those of the fleet sshd and Slurm, the compile test a C++ compiler.
$(VENV)/system.stamp: tests/tools/system_packages.sh | $(BIN)/python
	@sh tests/tools/system_packages.sh
	@touch $@
