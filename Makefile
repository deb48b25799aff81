# Every verb sets up what it needs. PYTHON= chooses the interpreter that .venv is made of.

PYTHON ?= python3
RUN := .venv/bin/python -m

.PHONY: serve test lint check format clean

serve: ## Start everything and answer; PORT= and CONFIG= override, Ctrl-C ends it all
	@$(PYTHON) scripts/install.py
	@exec $(RUN) scripts.serve $(if $(PORT),--port $(PORT)) $(if $(CONFIG),--config $(CONFIG))

test: .dev ## Run the tests; ARGS= goes to pytest
	@$(RUN) pytest $(ARGS)

lint: .dev ## Formatting, lints, types and the contracts between rooms
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) mypy
	@.venv/bin/lint-imports

check: lint test

format: .dev
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .

clean: ## Remove what the other verbs made here; the model cache stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: .dev
.dev:
	@$(PYTHON) scripts/install.py --dev
