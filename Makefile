# Sets itself up: `make demo` and `make test` need Python 3.11+, Java 17+, Maven and nothing else.
.DELETE_ON_ERROR:
.PHONY: demo quick test test-long test-golden test-stores test-spark test-connect test-kafka test-faults test-page \
	test-all test-nightly nightly check check-deploy check-chart check-alerts check-unit audit release site bench fuzz soak setup java

UV_VERSION := 0.13.9
PYTHON ?= python3
BIN := .venv/bin
# mkdocs and its theme, which no test needs.
SITE := .venv/site
# What Spark Connect's client needs costs every process that starts a second: pyarrow takes pandas in wherever it is.
CONNECT := .venv/connect
# The Spark that Iceberg has a release for, which is another one than ours: it writes histories.
ICEBERG := .venv/iceberg
ICEBERG_SPARK := 4.1.4
# atheris instruments what it imports, and is no dependency of the tests.
FUZZ := .venv/fuzz
# Where the tables of other projects lie, with known answers.
GOLDEN ?= ../shared/golden

# uv brings certificates of its own; a machine behind a proxy keeps the right ones where pip and curl look.
export UV_SYSTEM_CERTS := 1
# Tests start thousands of processes: without compiled files, each would spend most of a second compiling its imports.
export UV_COMPILE_BYTECODE := 1
unexport PYTHONDONTWRITEBYTECODE
export LAKE_TAILER_JARS := $(or $(shell $(PYTHON) tests/jars/where.py delta 2>/dev/null),no-jars)
export LAKE_TAILER_ICEBERG_SPARK_JARS := $(or $(shell $(PYTHON) tests/jars/where.py iceberg-spark 2>/dev/null),no-iceberg-spark-jars)
export LAKE_TAILER_KAFKA_JARS := $(or $(shell $(PYTHON) tests/jars/where.py kafka 2>/dev/null),no-kafka-jars)
export LAKE_TAILER_CONNECT_JARS := $(or $(shell $(PYTHON) tests/jars/where.py connect 2>/dev/null),no-connect-jars)
export LAKE_TAILER_REGISTRY_JARS := $(or $(shell $(PYTHON) tests/jars/where.py registry 2>/dev/null),no-registry-jars)
export LAKE_TAILER_SPARK_KAFKA_JARS := $(or $(shell $(PYTHON) tests/jars/where.py spark-kafka 2>/dev/null),no-spark-kafka-jars)
export LAKE_TAILER_ICEBERG_JARS := $(or $(shell $(PYTHON) tests/jars/where.py iceberg-rest 2>/dev/null),no-iceberg-jars)
export LAKE_TAILER_S3_JARS := $(or $(shell $(PYTHON) tests/jars/where.py s3 2>/dev/null),no-s3-jars)
export LAKE_TAILER_VERSITYGW := $(or $(shell $(PYTHON) tests/jars/where.py versitygw 2>/dev/null),no-versitygw)
HELM := $(shell $(PYTHON) tests/jars/where.py helm 2>/dev/null)
PROMTOOL := $(or $(shell command -v promtool),$(shell $(PYTHON) tests/jars/where.py promtool 2>/dev/null))
export LAKE_TAILER_FAKE_GCS := $(or $(shell $(PYTHON) tests/jars/where.py fake-gcs 2>/dev/null),no-fake-gcs)
export LAKE_TAILER_AZURITE := $(or $(shell $(PYTHON) tests/jars/where.py azurite 2>/dev/null),no-azurite)
# Each Java of Spark's tests starts in half the time with it.
SPARK_CLASSES := .venv/spark-classes.jsa
# Each of Kafka's nodes in tests starts in half the time with it.
KAFKA_CLASSES := .venv/kafka-classes.jsa
SERVER_JARS := $(LAKE_TAILER_KAFKA_JARS) $(LAKE_TAILER_CONNECT_JARS) $(LAKE_TAILER_REGISTRY_JARS)

lacks = { echo "lake-tailer needs $(1): install it and run make again." >&2; exit 1; }
PYTHON_FITS = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
JAVA_MAJOR = java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'

demo: .venv/.synced $(LAKE_TAILER_JARS) java
	@$(BIN)/python -m examples.demo

# Without Java, the tests of the tests, the blocks of the docs, and much memory: what to run while you work. Random cases
# are fewer than on a landing.
quick: export LAKE_TAILER_QUICK := 1
quick: .venv/.synced
	$(BIN)/pytest -p no:cacheprovider $(SIDE_BY_SIDE) -m "not spark and not kafka and not golden and not nightly" \
		-k "(not written_histories or 00) and \
			not (readme_runs[docs/ or readme_runs[deploy/ or readme_runs[examples/ or \
			test_tiers or test_durations or test_event_loop or test_extras or test_a_readme or little_memory \
			or test_wakeup or test_shard_delivery)" \
		tests/property/test_written_histories.py tests/test_readme.py tests/unit

# Tiers of tests; tests/tiers.py says which test is in which, tests/README.md which to run after which change.
PYTEST := $(BIN)/pytest tests -p no:cacheprovider
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder

test: .venv/.synced $(LAKE_TAILER_JARS) $(LAKE_TAILER_KAFKA_JARS) $(SPARK_CLASSES) $(KAFKA_CLASSES)
	$(PYTEST) --tier test $(SIDE_BY_SIDE)

test-long: .venv/.synced
	$(PYTEST) --tier long

test-golden: .venv/.synced $(LAKE_TAILER_JARS) $(LAKE_TAILER_VERSITYGW) $(SPARK_CLASSES)
	@[ -d "$(GOLDEN)/delta" ] || { echo "no golden tables in $(GOLDEN): put them there, or run make with GOLDEN=DIR." >&2; exit 1; }
	LAKE_TAILER_GOLDEN="$(abspath $(GOLDEN))" $(PYTEST) --tier golden $(SIDE_BY_SIDE)

test-stores: .venv/.synced $(LAKE_TAILER_S3_JARS) $(LAKE_TAILER_ICEBERG_JARS) $(LAKE_TAILER_CONNECT_JARS) $(LAKE_TAILER_VERSITYGW) $(LAKE_TAILER_AZURITE) $(SPARK_CLASSES)
	$(PYTEST) --tier stores $(SIDE_BY_SIDE)

test-spark: .venv/.synced $(ICEBERG)/.synced $(LAKE_TAILER_JARS) $(LAKE_TAILER_KAFKA_JARS) $(LAKE_TAILER_VERSITYGW) $(LAKE_TAILER_AZURITE) $(SPARK_CLASSES) \
		$(KAFKA_CLASSES)
	$(PYTEST) --tier spark $(SIDE_BY_SIDE)

# In an environment of its own, which takes a while to make.
test-connect: $(CONNECT)/.synced $(LAKE_TAILER_VERSITYGW) java
	$(PYTEST:.venv/%=$(CONNECT)/%) --tier connect

test-kafka: .venv/.synced $(LAKE_TAILER_JARS) $(SERVER_JARS) $(LAKE_TAILER_VERSITYGW) $(SPARK_CLASSES) $(KAFKA_CLASSES)
	$(PYTEST) --tier kafka

test-faults: .venv/.synced $(LAKE_TAILER_JARS) $(SERVER_JARS) $(LAKE_TAILER_SPARK_KAFKA_JARS) $(SPARK_CLASSES) $(KAFKA_CLASSES)
	$(PYTEST) --tier faults

test-page: .venv/.synced
	@command -v chromium >/dev/null || $(call lacks,Chromium)
	$(PYTEST) --tier page

# Three targets are made at a time, each whatever became of the others. First those whose tests mostly wait, for brokers
# and for processes that are killed. The last one is of many short tests in two processes, so both cores have work to the end.
PAGE := test-page
test-all: setup
	@$(MAKE) --no-print-directory -j3 --keep-going --output-sync=target --old-file=java \
		test-spark test-kafka test-faults test-long test-stores $(PAGE) check test-golden test

# All of the above, and the repetition: hours. Random cases are more, and others each time (tests/support/seeds.py).
nightly test-nightly: export LAKE_TAILER_SEED := $(or $(LAKE_TAILER_SEED),$(shell date +%s))
nightly: setup $(CONNECT)/.synced $(LAKE_TAILER_SPARK_KAFKA_JARS)
	@$(MAKE) --keep-going check-deploy test-all test-connect test-nightly fuzz

test-nightly: setup $(LAKE_TAILER_SPARK_KAFKA_JARS) $(LAKE_TAILER_FAKE_GCS) $(SPARK_CLASSES) $(KAFKA_CLASSES)
	@echo "LAKE_TAILER_SEED=$$LAKE_TAILER_SEED"
	$(PYTEST) --tier nightly --timeout=0 -s

check: .venv/.synced site
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/uv export --quiet --frozen --all-extras --no-dev --format cyclonedx1.5 -o .venv/lake-tailer.cdx.json
	@$(AUDIT) || { code=$$?; [ $$code -eq 2 ] || exit $$code; echo "known vulnerabilities were not asked for" >&2; }

# Inputs in all, over all targets: whole tables and checkpoints take milliseconds each, so they get fewer.
RUNS := 1000000
TARGETS := actions configuration delta_schema expression footer lance_files variant vector
fuzz: $(FUZZ)/.synced
	@failed=; \
	for target in $(TARGETS); do $(BIN)/python -m tests.fuzz $$target --runs $$(($(RUNS) * 12 / 100)) || failed=1; done; \
	for target in checkpoint tables; do \
		$(BIN)/python -m tests.fuzz $$target --runs $$(($(RUNS) * 2 / 100)) || failed=1; done; \
	[ -z "$$failed" ]

# Prints one table: events, faults by kind, memory, the five figures and what `tailer verify` says.
HOURS := 24
soak: .venv/.synced $(LAKE_TAILER_KAFKA_JARS) $(LAKE_TAILER_CONNECT_JARS) $(LAKE_TAILER_VERSITYGW) $(KAFKA_CLASSES)
	@$(BIN)/python -m tests.soak --hours $(HOURS) $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT))

# Asks a public service about known vulnerabilities of what uv.lock has, so it needs more than the package index. The exit
# code is 1 if there are any, and 2 if the service cannot be reached, with which alone `make check` goes on.
AUDIT = $(BIN)/uv audit --quiet --frozen --preview-features audit-command
audit: .venv/.synced
	$(AUDIT)

release: .venv/.synced
	@$(BIN)/python deploy/release.py

# Files of deploy/, with tools that do not come from the package index of Python; deploy/README.md lists them.
check-deploy: check-chart check-alerts check-unit

# helm takes itself for one of an old Kubernetes unless it is built with its own settings, so the version is given.
OPERATOR := github.com/prometheus-operator/prometheus-operator@v0.85.0
check-chart: .venv/.synced $(HELM)
	$(BIN)/uv sync --quiet --frozen --all-extras --no-extra all --no-extra spark-connect --group chart --inexact
	go mod download $(OPERATOR)
	$(HELM) lint --strict deploy/chart
	@set -e; for version in 1.27.0 1.31.0 1.34.0; do \
		for values in deploy/chart/values.yaml tests/deploy/everything.yaml; do \
			$(HELM) template lake-tailer deploy/chart --kube-version $$version --values $$values >.venv/chart.yaml; \
			echo --- | cat - deploy/verify/cronjob.yaml >>.venv/chart.yaml; \
			$(BIN)/python tests/deploy/validate_chart.py $$version \
				"$$(go env GOMODCACHE)/$(OPERATOR)/example/prometheus-operator-crd" <.venv/chart.yaml; \
		done; done

check-alerts: .venv/.synced $(PROMTOOL)
	$(PROMTOOL) check config deploy/prometheus/prometheus.yml
	$(PROMTOOL) test rules deploy/prometheus/alerts_test.yml
	@$(BIN)/python -m tests.deploy.dashboard_queries >.venv/queries.yml
	$(PROMTOOL) check rules .venv/queries.yml
	@$(BIN)/python -m tests.deploy.metrics_page >.venv/metrics.txt
	$(PROMTOOL) check metrics <.venv/metrics.txt

# The program of the unit need not be installed here.
check-unit:
	@command -v systemd-analyze >/dev/null || $(call lacks,systemd-analyze (Debian and Ubuntu: the package systemd))
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && unit="$$folder/lake-tailer.service" && \
	sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' deploy/lake-tailer.service >"$$unit" && \
	for part in service timer; do \
		sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "deploy/verify/lake-tailer-verify@.$$part" \
			>"$$folder/lake-tailer-verify@.$$part" || exit 1; done && \
	systemd-analyze verify "$$unit" "$$folder/lake-tailer-verify@.timer" && \
	systemd-analyze security --offline=true --threshold=20 "$$unit" >/dev/null

# The pages as a site, in .venv/site/site: `python3 -m http.server -d .venv/site/site`. A link that leads nowhere fails it.
site: $(SITE)/.synced
	@rm -rf $(SITE)/pages && mkdir $(SITE)/pages && \
	git ls-files -z '*.md' docs deploy examples LICENSE | xargs -0 cp --parents -t $(SITE)/pages && \
	mv $(SITE)/pages/docs/mkdocs.yml $(SITE)/mkdocs.yml && \
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --config-file $(SITE)/mkdocs.yml

bench: setup $(LAKE_TAILER_SPARK_KAFKA_JARS)
	$(BIN)/pytest tests/bench --tier bench --timeout=0

# Without the archives of classes: targets that do not need them are made while they are.
setup: .venv/.synced $(ICEBERG)/.synced $(LAKE_TAILER_JARS) $(SERVER_JARS) $(LAKE_TAILER_S3_JARS) $(LAKE_TAILER_ICEBERG_JARS) $(LAKE_TAILER_VERSITYGW) $(LAKE_TAILER_AZURITE)

java:
	@command -v java >/dev/null || $(call lacks,Java 17 or newer)

$(SPARK_CLASSES): .venv/.synced $(LAKE_TAILER_JARS) | java
	$(BIN)/python -m tests.support.spark.java

$(KAFKA_CLASSES): .venv/.synced $(LAKE_TAILER_KAFKA_JARS) | java
	$(BIN)/python -m tests.support.kafka.cluster

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

$(ICEBERG)/.synced: .venv/.synced $(LAKE_TAILER_ICEBERG_SPARK_JARS) Makefile
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(ICEBERG)
	$(BIN)/uv pip install --quiet --python $(ICEBERG)/bin/python pyspark==$(ICEBERG_SPARK)
	@touch $@

$(FUZZ)/.synced: .venv/.synced
	UV_PROJECT_ENVIRONMENT=$(FUZZ) $(BIN)/uv sync --quiet --frozen --python $(BIN)/python --all-extras --no-extra all \
		--no-extra spark-connect --group fuzz
	@touch $@

$(SITE)/.synced: .venv/.uv-$(UV_VERSION) pyproject.toml uv.lock
	UV_PROJECT_ENVIRONMENT=$(SITE) $(BIN)/uv sync --quiet --frozen --python $(BIN)/python --only-group site
	@touch $@

$(LAKE_TAILER_JARS): POM := tests/jars/pom.xml
$(LAKE_TAILER_ICEBERG_SPARK_JARS): POM := tests/jars/iceberg-spark-pom.xml
$(LAKE_TAILER_KAFKA_JARS): POM := tests/kafka/pom.xml
$(LAKE_TAILER_CONNECT_JARS): POM := tests/kafka/connect-pom.xml
$(LAKE_TAILER_REGISTRY_JARS): POM := tests/kafka/registry-pom.xml
$(LAKE_TAILER_SPARK_KAFKA_JARS): POM := tests/kafka/spark-pom.xml
$(LAKE_TAILER_S3_JARS): POM := tests/jars/s3-pom.xml
$(LAKE_TAILER_ICEBERG_JARS): POM := tests/jars/iceberg-rest-pom.xml
$(LAKE_TAILER_REGISTRY_JARS) $(LAKE_TAILER_S3_JARS): GOAL := copy
GOAL := copy-dependencies

# Named after the pom's content and moved into place when complete: if the directory exists, it is the right one.
$(LAKE_TAILER_JARS) $(SERVER_JARS) $(LAKE_TAILER_S3_JARS) $(LAKE_TAILER_ICEBERG_JARS) $(LAKE_TAILER_ICEBERG_SPARK_JARS) $(LAKE_TAILER_SPARK_KAFKA_JARS): | .venv/.synced
	@[ "0$$($(JAVA_MAJOR))" -ge 17 ] || $(call lacks,Java 17 or newer)
	@command -v mvn >/dev/null || $(call lacks,Maven)
	@mkdir -p $(@D)
	partial=$$(mktemp -d $@.XXXXXX) && trap 'rm -rf "$$partial"' EXIT && \
	mvn -q -B -Dstyle.color=never -f $(POM) dependency:$(GOAL) -DoutputDirectory=$$partial/jars && \
	mv $$partial/jars $@

# The folder is named after the version.
$(LAKE_TAILER_VERSITYGW):
	@command -v go >/dev/null || $(call lacks,Go)
	@mkdir -p $(@D)
	partial=$$(mktemp -d $(@D)/build.XXXXXX) && trap 'rm -rf "$$partial"' EXIT && \
	GOBIN=$$partial go install github.com/versity/versitygw/cmd/versitygw@$(notdir $(@D)) && mv $$partial/versitygw $@

$(HELM):
	@command -v go >/dev/null || $(call lacks,Go)
	@mkdir -p $(@D)
	partial=$$(mktemp -d $(@D)/build.XXXXXX) && trap 'rm -rf "$$partial"' EXIT && \
	GOBIN=$$partial go install helm.sh/helm/v3/cmd/helm@$(notdir $(@D)) && mv $$partial/helm $@

# Some minutes, unless a package has it (Debian and Ubuntu: prometheus). `go install` refuses modules that leave out
# versions of others, as this one does.
$(PROMTOOL):
	@command -v go >/dev/null || $(call lacks,Go)
	@mkdir -p $(@D)
	go mod download github.com/prometheus/prometheus@$(notdir $(@D))
	partial=$$(mktemp -d $(@D)/build.XXXXXX) && trap 'rm -rf "$$partial"' EXIT && \
	go build -C "$$(go env GOMODCACHE)/github.com/prometheus/prometheus@$(notdir $(@D))" -o "$$partial/promtool" \
		./cmd/promtool && mv $$partial/promtool $@

$(LAKE_TAILER_FAKE_GCS):
	@command -v go >/dev/null || $(call lacks,Go)
	@mkdir -p $(@D)
	partial=$$(mktemp -d $(@D)/build.XXXXXX) && trap 'rm -rf "$$partial"' EXIT && \
	GOBIN=$$partial go install github.com/fsouza/fake-gcs-server@$(notdir $(@D)) && mv $$partial/fake-gcs-server $@

# The folder is named after the version, and moved into place when complete.
$(LAKE_TAILER_AZURITE):
	@command -v npm >/dev/null || $(call lacks,Node.js with npm)
	@mkdir -p $(@D)
	partial=$$(mktemp -d $(@D)/build.XXXXXX) && trap 'rm -rf "$$partial"' EXIT && \
	npm install --silent --no-audit --no-fund --prefix $$partial azurite@$(notdir $@) && mv $$partial $@
