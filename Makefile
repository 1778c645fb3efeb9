# Every target makes what it needs. PYTHON=python3.13 make test chooses the interpreter, PORT=8080 make demo the port.
PYTHON ?= python3
SETUP = $(PYTHON) -m dashboard.demo.setup
VENV = $(shell $(SETUP) --print-venv)
RUN = $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help demo run test lint bench chaos shots lock

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Start everything with a sample workload that fails like real work, and print the URL
	@$(SETUP)
	@exec $(RUN) -m dashboard.demo $(if $(PORT),--port $(PORT))

run: ## Start web and workers without the sample
	@$(SETUP)
	@exec $(RUN) -m dashboard.demo --no-sample $(if $(PORT),--port $(PORT))

test: ## Run every test; ARGS="-k name" narrows it
	@$(SETUP) --dev
	@exec $(RUN) -m tests $(ARGS)

lint: ## Check format, types, templates and the direction of imports
	@$(SETUP) --dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/djlint --quiet --lint templates

bench: ## Measure, beside the bare client in the same run
	@$(SETUP) --dev
	@exec $(RUN) -m bench $(ARGS)

chaos: ## Run the long tests that kill processes at random
	@$(SETUP) --dev
	@exec $(RUN) -m pytest -m slow tests/invariants $(ARGS)

shots: ## Write a screenshot of every page, light, dark and phone, to var/shots
	@$(SETUP) --dev
	@exec $(RUN) -m tests.browser.shots $(ARGS)

lock: ## Lock the requirements again after an edit of pyproject.toml (needs uv)
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-emit-index-url --extra site pyproject.toml -o requirements.txt
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-emit-index-url --extra site --group dev -c requirements.txt pyproject.toml -o requirements-dev.txt
