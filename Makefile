# Every target sets itself up: `make demo` and `make test` work on a fresh checkout, as root or not, and install
# nothing on the system. PYTHON=... picks another interpreter (3.10 or later), ARGS=... goes to the command.

PYTHON  ?= python3
VENV    ?= .venv
VENVS   ?= .venvs
PYTHONS ?= $(sort $(wildcard $(HOME)/.pyenv/versions/3.1[0-9]*/bin/python))
TESTS   ?= tests/unit tests/integration
ARGS    ?=
# What meets a dependency as it is: a store's driver, Django, what is sent to Sentry and OpenTelemetry.
OLDEST  ?= tests/unit $(addprefix tests/integration/test_,$(addsuffix .py,claim_check django_project django_store every_pool \
               inbox mariadb_inbox opentelemetry outbox prometheus redis_link redis_store sentry sql_store wiring))
SHOTS   ?=
# A server named by the environment is shared, so the tests take turns.
PROCESSES ?= $(if $(CR_TEST_REDIS_URL)$(CR_TEST_RABBITMQ_URL)$(CR_TEST_POSTGRES_URL)$(CR_TEST_MARIADB_URL),0,$(MORE_THAN_CORES))
# Tests mostly wait for processes that they have started; one more than there are cores keeps those from waiting for each other.
MORE_THAN_CORES = $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1)

# The tests start hundreds of processes: with bytecode kept from one to the next each takes half the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-django test test-browser chaos model fuzz lint types imports format docs bench peers matrix oldest package clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo ## Watch workers stop, die and hand over, with a verdict table at the end
	$(VENV)/bin/python -m example_project.demo $(ARGS)

demo-django: $(VENV)/.test ## Watch a Django shop: worker, beat and admin, with a verdict table at the end
	$(VENV)/bin/python -m example_project.webshop.demo $(ARGS)

test: $(VENV)/.test ## Run the unit and integration tests against real servers
	$(VENV)/bin/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(TESTS) $(ARGS)

test-browser: $(VENV)/.test ## Drive the pages of Django's admin in a real Chromium; SHOTS=DIR writes screenshots
	CR_TEST_SCREENSHOTS=$(SHOTS) $(VENV)/bin/python -m pytest -n 0 tests/browser $(ARGS)

chaos: $(VENV)/.test ## Kill, freeze and cut off workers and servers for long, then judge by the ledger
	$(VENV)/bin/python -m tests.chaos $(ARGS)

model: $(VENV)/.test ## Visit every state of the protocol's model, the large scenarios too
	$(VENV)/bin/python -m tests.model $(ARGS)

fuzz: $(VENV)/.test ## Send 100,000 malformed messages to a worker on Redis, and on RabbitMQ
	$(VENV)/bin/python -m tests.fuzz $(ARGS)

lint: $(VENV)/.lint ## Check style, format, types and the direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(MAKE) types imports

types: $(VENV)/.lint ## Check the types
	$(VENV)/bin/mypy

imports: $(VENV)/.lint ## Check that imports point down
	$(VENV)/bin/lint-imports --no-cache

format: $(VENV)/.lint ## Format the code, sort imports
	$(VENV)/bin/ruff check --fix-only --select I .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.docs ## Build the documentation into docs/_build/html; its reference is written from the code
	$(VENV)/bin/python docs/draw_costs.py
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/python -m sphinx -W --keep-going -q docs docs/_build/html

bench: $(VENV)/.test ## Compare with plain Celery, interleaved in one run
	$(VENV)/bin/python -m benchmarks $(ARGS)

peers: $(VENV)/.test ## Do the same accidents to other task queues, and write the table that compares
	$(VENV)/bin/python -m benchmarks.peers $(ARGS)

matrix: ## Run the tests on each of PYTHONS, by default all 3.10 and later that pyenv has
	@test -n "$(PYTHONS)" || { echo "no Python 3.10 or later in pyenv; name some: make matrix PYTHONS='python3.10 python3.13'" >&2; exit 1; }
	@for python in $(PYTHONS); do \
	    version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    echo "== Python $$version"; \
	    $(MAKE) --no-print-directory test PYTHON=$$python VENV=$(VENVS)/$$version || exit 1; \
	done

oldest: $(VENVS)/oldest/.oldest ## Run unit tests, and those against each dependency, on the oldest ones that pyproject.toml allows
	$(VENVS)/oldest/bin/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(OLDEST) $(ARGS)

package: $(VENV)/.package ## Build sdist and wheel into dist, and use the wheel in a fresh environment
	rm -rf dist
	$(VENV)/bin/python -m build --outdir dist
	$(VENV)/bin/python -m tests.packaging dist

clean: ## Remove everything that was built, the environments too
	rm -rf $(VENV) $(VENVS) .peers build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environments: built once, completed per extra, brought up to date when pyproject.toml changes.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	    || { echo "$(PYTHON) is missing or older than Python 3.10; name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    || { echo "$(PYTHON) cannot make virtual environments; install what it lacks: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENVS)/oldest/.oldest: pyproject.toml
	$(PYTHON) -m venv --clear $(VENVS)/oldest
	@echo "setting up $(VENVS)/oldest"
	@$(PYTHON) -m tests.oldest > $(VENVS)/oldest/constraints.txt
	@$(VENVS)/oldest/bin/python -m pip --disable-pip-version-check --quiet install \
	    --constraint $(VENVS)/oldest/constraints.txt --editable '.[test]'
	@touch $@

$(VENV)/.%: pyproject.toml $(VENV)/.made
	@echo "setting up $(VENV) for $*"
	@$(VENV)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[$*]'
	@touch $@
