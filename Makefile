# Every command there is. `make` alone prints this list.
#
# By default everything runs in .venv with the exact versions of requirements.lock.
# PYTHON=python uses the caller's own environment instead, because people must
# measure with *their* torch; nothing is installed then.

VENV   := .venv
STAMP  := $(VENV)/.installed
ARGS   ?=
RANKS  ?= 2
SYSTEM_PYTHON ?= python3

ifdef PYTHON
  RUN   := $(PYTHON)
  READY :=
else
  RUN   := $(VENV)/bin/python
  READY := $(STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: help diagnose optimize bandwidth scaling measure-all batch-size evaluate accuracy simulated test quick bench fakegpu lint report check clean

help: ## print this list
	@awk -F':.*## ' '/^[a-z_-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo '  ARGS="--size tiny" passes options on; PYTHON=python uses your own environment'

$(STAMP): requirements.lock
	@$(SYSTEM_PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else "Python 3.10 or newer is needed, this is %d.%d; set SYSTEM_PYTHON=" % v[:2])'
	$(SYSTEM_PYTHON) -m venv $(VENV) >&2
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock >&2
	@touch $@

diagnose: $(READY) ## measure this machine stage by stage and write reports/<label>/
	$(RUN) -m diagnose run $(ARGS)

optimize: $(READY) ## try every optimization of the full model, with proofs and intervals
	$(RUN) -m diagnose optimize $(ARGS)

bandwidth: $(READY) ## how fast RANKS (default: 2) exchange gradients, and what limits them
	$(RUN) -m torch.distributed.run --nproc-per-node=$(RANKS) diagnose/ddp_bandwidth.py $(ARGS)

scaling: $(READY) ## why RANKS are slower than they could be, and which options help
	$(RUN) -m torch.distributed.run --nproc-per-node=$(RANKS) diagnose/ddp_scaling.py $(ARGS)

measure-all: $(READY) ## measure every committed report again, one after the other; resumable
	$(RUN) -m bench.measure_all $(ARGS)

batch-size: $(READY) ## the largest batch that fits, and the one to use; ARGS="--workload textgen"
	$(RUN) -m diagnose batch-size $(ARGS)

evaluate: $(READY) ## answer and score questions; ARGS="-m DIR -d FILE.jsonl -b 8"
	$(RUN) diagnose/evaluate.py $(ARGS)

accuracy: $(READY) ## diagnose scripts whose cause is known, and publish how often it is right
	$(RUN) -m diagnose accuracy $(ARGS)
	$(RUN) -m bench.prove.pairs --kind planted
	@$(if $(ARGS),,$(MAKE) -s simulated)

simulated: $(READY) ## the same on the simulated GPU, whose scripts are of their own
	PYTHONPATH="$$($(RUN) -m tests.support.fakegpu.build)" TORCH_DEVICE_BACKEND_AUTOLOAD=1 \
		$(RUN) -m diagnose accuracy --simulated $(ARGS)

PYTEST = $(RUN) -m pytest tests --dist loadfile --no-loadscope-reorder

test: lint ## lint, then every test, three files at a time
# Three files at a time on two cores: many tests wait, for a deadline or a slow link.
	$(PYTEST) -n 3 $(ARGS)

quick: lint ## lint, then every test that starts no Python process: about a minute
	$(PYTEST) -n 2 --quick -m "not child and not long and not alone" $(ARGS)

bench: $(READY) ## the stages as pytest-benchmark tests (JSON in .benchmarks/)
	$(RUN) -m pytest bench --benchmark-autosave $(ARGS)

fakegpu: $(READY) ## build the fake GPU; the folder it prints goes on PYTHONPATH
	@$(RUN) -m tests.support.fakegpu.build

lint: $(READY) ## ruff and mypy --strict
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

report: $(READY) ## render every report again from its JSON (needs no torch)
	$(RUN) -m diagnose report $(ARGS)
	@$(if $(ARGS),,$(RUN) -m bench.kept)

check: $(READY) ## fail if a committed report is not what its JSON renders to
	$(RUN) -m diagnose check $(ARGS)
	@$(RUN) -m bench.kept --check $(ARGS)

clean: ## remove the environment and every cache
	rm -rf $(VENV) .cache .benchmarks .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
