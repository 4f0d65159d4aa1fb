# Sets itself up: `make demo` and `make test` need Python 3.11+, Java 17+, Maven and nothing else.
.DELETE_ON_ERROR:
.PHONY: demo test check bench soak setup java

UV_VERSION := 0.13.9
PYTHON ?= python3
BIN := .venv/bin
# What Spark Connect's client needs costs every process that starts a second: pyarrow takes pandas in wherever it is.
CONNECT := .venv/connect

# uv brings certificates of its own; a machine behind a proxy keeps the right ones where pip and curl look.
export UV_SYSTEM_CERTS := 1
export LAKE_TAILER_JARS := $(or $(shell $(PYTHON) tests/jars/where.py delta 2>/dev/null),no-jars)
export LAKE_TAILER_KAFKA_JARS := $(or $(shell $(PYTHON) tests/jars/where.py kafka 2>/dev/null),no-kafka-jars)
export LAKE_TAILER_CONNECT_JARS := $(or $(shell $(PYTHON) tests/jars/where.py connect 2>/dev/null),no-connect-jars)
export LAKE_TAILER_REGISTRY_JARS := $(or $(shell $(PYTHON) tests/jars/where.py registry 2>/dev/null),no-registry-jars)
export LAKE_TAILER_SPARK_KAFKA_JARS := $(or $(shell $(PYTHON) tests/jars/where.py spark-kafka 2>/dev/null),no-spark-kafka-jars)
SERVER_JARS := $(LAKE_TAILER_KAFKA_JARS) $(LAKE_TAILER_CONNECT_JARS) $(LAKE_TAILER_REGISTRY_JARS)

lacks = { echo "lake-tailer needs $(1): install it and run make again." >&2; exit 1; }
PYTHON_FITS = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
JAVA_MAJOR = java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'

demo: .venv/.synced $(LAKE_TAILER_JARS) java
	@$(BIN)/tailer demo

# Tests of brokers mostly wait and those of tables compute, so they run side by side, with what evens out their length;
# the brokers' are shown at the end.
BESIDE := kafka or registry or spark_delta_kill
PYTEST := $(BIN)/pytest tests --ignore=tests/bench -m "not soak and not spark_connect"
test: setup $(CONNECT)/.synced
	@log=$$(mktemp); $(PYTEST) -k "$(BESIDE)" -p no:cacheprovider >"$$log" 2>&1 & beside=$$!; \
	trap '[ -z "$$beside" ] || kill $$beside; rm -f "$$log"' EXIT; trap 'exit 1' INT TERM; \
	$(PYTEST) -k "not ($(BESIDE))"; tables=$$?; \
	$(CONNECT)/bin/pytest tests/integration -m spark_connect -p no:cacheprovider; connect=$$?; \
	wait $$beside; brokers=$$?; beside=; cat "$$log"; \
	[ $$tables -eq 0 ] && [ $$connect -eq 0 ] && [ $$brokers -eq 0 ]

check: .venv/.synced
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: setup $(LAKE_TAILER_SPARK_KAFKA_JARS)
	$(BIN)/pytest tests/bench --timeout=0

soak: setup
	$(BIN)/pytest tests -m soak --timeout=0

setup: .venv/.synced $(LAKE_TAILER_JARS) $(SERVER_JARS) java

java:
	@command -v java >/dev/null || $(call lacks,Java 17 or newer)

.venv/.uv-$(UV_VERSION):
	@$(PYTHON) -c '$(PYTHON_FITS)' 2>/dev/null || $(call lacks,Python 3.11 or newer with its venv module)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

# --inexact leaves uv where it is: a tool of this file, not a dependency of the project.
.venv/.synced: .venv/.uv-$(UV_VERSION) pyproject.toml uv.lock
	$(BIN)/uv sync --quiet --frozen --all-extras --no-extra all --no-extra spark-connect --inexact
	@touch $@

$(CONNECT)/.synced: .venv/.synced
	UV_PROJECT_ENVIRONMENT=$(CONNECT) $(BIN)/uv sync --quiet --frozen --python $(BIN)/python --all-extras
	@touch $@

$(LAKE_TAILER_JARS): POM := tests/jars/pom.xml
$(LAKE_TAILER_KAFKA_JARS): POM := tests/kafka/pom.xml
$(LAKE_TAILER_CONNECT_JARS): POM := tests/kafka/connect-pom.xml
$(LAKE_TAILER_REGISTRY_JARS): POM := tests/kafka/registry-pom.xml
$(LAKE_TAILER_SPARK_KAFKA_JARS): POM := tests/kafka/spark-pom.xml
$(LAKE_TAILER_REGISTRY_JARS): GOAL := copy
GOAL := copy-dependencies

# Named after the pom's content and moved into place when complete: if the directory exists, it is the right one.
$(LAKE_TAILER_JARS) $(SERVER_JARS) $(LAKE_TAILER_SPARK_KAFKA_JARS): | .venv/.synced
	@[ "0$$($(JAVA_MAJOR))" -ge 17 ] || $(call lacks,Java 17 or newer)
	@command -v mvn >/dev/null || $(call lacks,Maven)
	@mkdir -p $(@D)
	partial=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$partial"' EXIT && \
	mvn -q -B -Dstyle.color=never -f $(POM) dependency:$(GOAL) -DoutputDirectory=$$partial/jars && \
	mv $$partial/jars $@
