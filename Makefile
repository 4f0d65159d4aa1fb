# Sets itself up: `make demo` and `make test` need Python 3.11+, Java 17+, Maven and nothing else.
.DELETE_ON_ERROR:
.PHONY: demo test check bench soak setup

UV_VERSION := 0.13.9
PYTHON     ?= python3
BIN        := .venv/bin

# uv brings its own certificates; a machine behind a proxy has the right ones where pip and curl look.
export UV_SYSTEM_CERTS := 1
export LAKE_TAILER_JARS := $(shell $(PYTHON) tests/jars/where.py 2>/dev/null)

need = command -v $(1) >/dev/null 2>&1 || { echo "lake-tailer needs $(2): install it and run make again." >&2; exit 1; }

demo: setup
	$(BIN)/tailer demo

test: setup
	$(BIN)/pytest tests --ignore=tests/bench -m "not soak"

check: .venv/.synced
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/pytest tests/bench

soak: setup
	$(BIN)/pytest tests -m soak --timeout=0

setup: .venv/.synced $(LAKE_TAILER_JARS)
	@$(call need,java,Java 17 or newer)

.venv/.uv-$(UV_VERSION):
	@$(call need,$(PYTHON),Python 3.11 or newer)
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "lake-tailer needs Python 3.11 or newer with its venv module (python3-venv): install it and run make again." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

# --inexact leaves uv itself where it is: it is a tool of this file, not a dependency of the project.
.venv/.synced: .venv/.uv-$(UV_VERSION) pyproject.toml uv.lock
	$(BIN)/uv sync --quiet --frozen --all-extras --inexact
	@touch $@

# Named after the pom's content and renamed into place when complete: if the directory exists it is the right one.
$(LAKE_TAILER_JARS):
	@$(call need,java,Java 17 or newer)
	@$(call need,mvn,Maven)
	@mkdir -p $(@D) && rm -rf $@.partial
	mvn -q -B -f tests/jars/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$@.partial
	@mv $@.partial $@
