# To begin, you need `make run` and `make test`. `make help` lists all targets.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/ready
PIPELINE := $(VENV)/pipeline
PACKAGES := gateway deploy tests
# With PYTEST, one process, so that a debugger works.
WORKERS := 3

# The tests start hundreds of processes; without caches each of them would compile the gateway.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test quick lint style types law docs programs tests test-brokers test-pythons test-deb dist deb kills clients fuzz audit mutants bench bench-journal bench-ingest
.PHONY: bench-floor bench-full bench-growth bench-neighbours bench-pages bench-report bench-stream bench-workers demo-pipeline demo-cluster chaos soak clean
.SILENT:

help:
	echo "make run     start the gateway on 127.0.0.1:61613, and a private RabbitMQ behind it"
	echo "             AMQP_URL=amqp://user:password@host:5672/vhost   use this broker instead"
	echo "             STOMP_PORT=61614                                listen there instead"
	echo "make test    check style, types, import law and docs, and run all tests; PYTEST='-k name' selects tests"
	echo "             WORKERS=2                                       so many processes run them, 3 without"
	echo "make lint    the same without the tests"
	echo "make quick   for every change, in two minutes: style, types, import law, unit and property tests; PYTEST='-k name'"
	echo "make test-brokers run parity, system, fault and cluster tests on RabbitMQ 3.10, 4.0 and the newest; BROKER=4.0 on one; needs root"
	echo "make test-pythons run the tests of the gateway on every Python from 3.11 on that is here; ARGS=--debian adds those of Debian's unstable"
	echo "make dist    build wheel, sdist, Debian package, SBOM and checksums in dist/; make deb: the Debian package alone"
	echo "make test-deb  install, use, upgrade and remove the Debian package on a fresh Debian that boots; needs root"
	echo "make docs    build the documentation as a site in var/site; a dead link is an error"
	echo "make clients run client libraries in four languages against plugin and gateway, and compare"
	echo "make fuzz    look for bytes that break what reads them, for SECONDS=300; ARGS='--help' shows its options"
	echo "make audit   look for insecure code (bandit), and for known vulnerabilities of all requirements (pip-audit)"
	echo "make mutants put small faults into the core for SECONDS=600, and name those that no test finds"
	echo "make kills   kill the ingest of the pipeline again and again, and a worker of a Spark cluster: nothing is lost or counted twice"
	echo "make chaos   200 runs with faults in broker, gateway and their connections; SEED=123 repeats one; RUNS=, ARGS="
	echo "             CLUSTER=3                                       with a cluster of three nodes"
	echo "make soak    2,000 sessions of mixed behaviour for MINUTES=20, with restarts of the broker; memory and latency stay flat"
	echo "make bench   compare gateway and RabbitMQ's STOMP plugin: CPU and speed; ROWS=name,name selects; ARGS=--help"
	echo "             BROKER=newest                                   with the newest RabbitMQ of Debian's unstable; needs root"
	echo "make bench-full  the same with all rows, which takes half an hour"
	echo "make bench-growth  measure how the CPU time of a message grows with sessions, bodies, headers, subscriptions; draw it"
	echo "make bench-pages   fill the tables of README, docs/performance.md and docs/tuning.md from what the three measured last"
	echo "make bench-neighbours  measure what one client's work costs another, at gateway and plugin; ROWS=name,name selects"
	echo "make bench-floor  measure what the broker alone costs for what the gateway promises; ARGS='--help' shows its options"
	echo "make bench-workers  measure what a second worker is worth, in rate, CPU time and memory; ARGS='--help' shows its options"
	echo "make bench-journal  measure what the traffic journal costs the gateway; ARGS='--help' shows its options"
	echo "make bench-ingest   measure how fast journals become tables; ARGS='--help' shows its options"
	echo "make bench-report   measure what a report on a year of tables costs; ARGS='--help' shows its options"
	echo "make bench-stream   measure what a message costs from a stream to a table and back; ARGS='--help' shows its options"
	echo "make demo-pipeline  go from traffic to a report with a private broker and gateway; takes minutes"
	echo "make demo-cluster   the same with Spark on a master and two workers of its own, one of which is killed in the middle"
	echo "make setup   only prepare $(VENV); the other targets do this, too"
	echo "make clean   remove $(VENV), var and all caches"

# Rebuilt only when one of these files has changed.
$(STAMP): pyproject.toml constraints.txt deploy/local/environment.sh
	deploy/local/environment.sh $(VENV)
	touch $@

# Not for `make run`: Spark takes 490 MB and needs Java. JAVA_HOME selects the Java.
$(PIPELINE): $(STAMP) deploy/local/java.py
	$(BIN)/python -m deploy.local.java
	echo "Installing what the pipeline needs (PySpark, PyArrow, Delta Lake: 0.9 GB on disk), this takes a minute"
	PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
		$(BIN)/python -m pip install --quiet --use-pep517 --editable '.[dev,pipeline,ship]' || \
		{ echo "setup: pip could not install PySpark and PyArrow: see its message above" >&2; exit 1; }
	touch $@

setup: $(STAMP)

run: $(STAMP)
	$(BIN)/python -m deploy.local.run

# Two at a time. Downloads wait for the network.
TOGETHER := $(MAKE) --no-print-directory --jobs 2 --output-sync=target

# mypy takes longer than the other checks together, on one processor: it runs beside the tests, which keep the terminal.
# So its errors are far above the end of the tests, and Ctrl-C reaches only the tests.
BESIDE_TYPES = trap 'kill $$! 2>/dev/null; exit 1' INT TERM; $(MAKE) --no-print-directory types & $(1); tested=$$?; \
	wait $$! || { echo "== types failed: see above, or make types" >&2; exit 1; }; exit $$tested

test: $(PIPELINE)
	$(TOGETHER) programs style law docs
	$(call BESIDE_TYPES,$(MAKE) --no-print-directory tests)

lint: $(PIPELINE)
	$(TOGETHER) types style law docs

QUICK_TESTS := HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest tests/unit tests/property

# What needs no broker and none of the programs of `make tests`, with fewer examples of Hypothesis.
quick: $(PIPELINE)
	$(TOGETHER) style law
	echo "== quick tests"
	$(call BESIDE_TYPES,$(QUICK_TESTS) --ignore tests/unit/deploy -n 2 $(PYTEST))

style: $(PIPELINE)
	echo "== style"
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check . || { echo "Not formatted. To fix: $(BIN)/ruff format ."; exit 1; }

types: $(PIPELINE)
	echo "== types"
	$(BIN)/mypy --no-error-summary

law: $(PIPELINE)
	echo "== import law"
	$(BIN)/lint-imports --no-logo

docs: $(STAMP)
	echo "== docs"
	mkdir -p var
	$(BIN)/zensical build --config-file .mkdocs.yml --strict >var/docs.log 2>&1 || { cat var/docs.log; exit 1; }

# What some tests need beside Python. Each command does nothing if the program is here.
programs: $(STAMP)
	$(BIN)/python -m deploy.local.chromium
	$(BIN)/python -m deploy.local.promtool
	$(BIN)/python -m deploy.local.kube_programs
	$(BIN)/python -m deploy.local.load_balancers

# More workers than processors, because the tests often wait.
tests: $(PIPELINE) programs
	echo "== tests"
	$(BIN)/python -m pytest -m "not clients and not kills and not deb and not brokers" $(or $(PYTEST),-n $(WORKERS))
	echo "To test clients in Ruby, Perl and JavaScript: make clients"

# Minutes for each release; those that are not installed go into var, once. deploy.local.broker reads BROKER, and so do
# the benchmarks.
test-brokers: $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[dev,ship]'
	$(BIN)/python -m tests.brokers $(if $(BROKER),--only $(BROKER)) $(or $(PYTEST),-n $(WORKERS))

# Environments in var/pythons.
test-pythons: $(STAMP)
	$(BIN)/python -m tests.pythons $(ARGS)

RELEASE_TOOLS := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[release]'

dist: $(STAMP)
	$(RELEASE_TOOLS)
	$(BIN)/python -m deploy.release

deb: $(STAMP)
	$(RELEASE_TOOLS)
	$(BIN)/python -m deploy.release deb

# The Debian that boots goes into var/machine, once.
test-deb: $(STAMP)
	$(RELEASE_TOOLS)
	$(BIN)/python -m pytest -m deb tests/deb $(PYTEST)

# The long test; `make test` runs a short one.
kills: $(PIPELINE)
	$(BIN)/python -m pytest -m kills tests/pipeline $(PYTEST)

clients: $(STAMP)
	echo "== client libraries"
	$(BIN)/python -m tests.clients.prepare
	$(BIN)/python -m pytest -rs tests/clients $(PYTEST)

# Guided by coverage if atheris has a wheel for this machine, otherwise random.
fuzz: $(STAMP)
	$(BIN)/python -c 'import atheris' 2>/dev/null || \
		PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --only-binary atheris --editable '.[fuzz]' || \
		echo "atheris cannot be installed here; using random mutation instead"
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),300) $(ARGS)

# Needs PyPI, which knows the vulnerabilities of what is installed.
audit: $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[audit]'
	echo "== bandit"
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive gateway deploy
	echo "== pip-audit"
	$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt || \
		{ echo "audit: the lines above name vulnerabilities; or a package of which PyPI told nothing, and then" \
			"pip-audit has checked none" >&2; exit 1; }

# One run again: SEED=. Fewer: RUNS=.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(CLUSTER),--cluster $(CLUSTER)) $(ARGS)

# What mutmut makes lies in mutants/.
mutants: $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[mutants]'
	$(BIN)/python -m tests.mutants --seconds $(or $(SECONDS),600) $(ARGS)

# Shorter: MINUTES=.
soak: $(STAMP)
	$(BIN)/python -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

# Results with another broker have a file of their own; the newest's have places of their own in the pages.
BENCH_JSON := $(if $(BROKER),--json var/bench-$(BROKER).json)

bench: $(STAMP)
	$(BIN)/python -m tests.bench $(if $(ROWS),--rows $(ROWS)) $(BENCH_JSON) $(ARGS)

bench-full: $(STAMP)
	$(BIN)/python -m tests.bench --rows all $(BENCH_JSON) $(ARGS)

# What draws the plots is installed for this only.
bench-growth: $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m tests.bench.growth $(ARGS)
	$(BIN)/python -m tests.bench.growth_plots

bench-pages: $(STAMP)
	$(BIN)/python -m tests.bench.pages $(ARGS)

bench-neighbours: $(STAMP)
	$(BIN)/python -m tests.bench.neighbours $(if $(ROWS),--rows $(ROWS)) $(ARGS)

bench-workers: $(STAMP)
	$(BIN)/python -m tests.bench.workers $(ARGS)

bench-floor: $(STAMP)
	$(BIN)/python -m tests.bench.floor $(ARGS)

bench-journal: $(STAMP)
	$(BIN)/python -m tests.bench.journal $(ARGS)

bench-ingest: $(PIPELINE)
	$(BIN)/python -m tests.bench.ingest $(ARGS)

bench-stream: $(PIPELINE)
	$(BIN)/python -m tests.bench.stream $(ARGS)

bench-report: $(PIPELINE)
	$(BIN)/python -m tests.bench.year_report $(ARGS)

demo-pipeline: $(PIPELINE)
	$(BIN)/python -m deploy.demo $(ARGS)

demo-cluster: $(PIPELINE)
	$(BIN)/python -m deploy.demo --cluster $(ARGS)

clean:
	rm -rf $(VENV) var build dist mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find $(PACKAGES) -name __pycache__ -type d -prune -exec rm -rf {} +
