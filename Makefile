# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
SIM_SEEDS ?= 200
# A test waits for processes and servers much of its time.
WORKERS := $(shell expr 3 \* $$(nproc))
SEEDS ?= 10000
CHANGES ?= 1000

# Test servers that Debian does not have.
THINGS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/headgate

# Tests start hundreds of processes; each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: packages chart compiled gerrit nova sim fuzz demo test unit check bench docs proto clean faults lock wheel soak

demo: .venv/.demo
	$(BIN)/headgate demo

test: .venv/.dev tests/node/node_modules
	$(MAKE) --no-print-directory -j 2 check compiled
	scripts/debian-packages default-jre-headless:java zookeeper:/usr/share/zookeeper/bin/zkServer.sh
	scripts/debian-packages etcd-server:etcd etcd-client:etcdctl
	scripts/debian-packages faketime:faketime bubblewrap:bwrap iproute2:/usr/sbin/ip nftables:/usr/sbin/nft passt:pasta uidmap:newuidmap chromium-headless-shell:chromium-headless-shell openssh-server:/usr/sbin/sshd openssh-client:ssh sudo:sudo rsync:rsync postgresql:pg_ctlcluster gitolite3:gitolite mosquitto:/usr/sbin/mosquitto podman:podman runc:runc busybox-static:busybox prometheus:promtool
	-$(MAKE) --no-print-directory gerrit
	-$(MAKE) --no-print-directory nova
	SIM_SEEDS=$(SIM_SEEDS) $(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests

# One process compiles tests and Headgate beside the checks: each of pytest's workers would compile all of it.
compiled: .venv/.dev
	-$(BIN)/pytest --collect-only -qq tests > .venv/collected 2>&1

# A quarter of a minute: the unit tests that run no processes and few examples.
unit: .venv/.dev
	$(BIN)/pytest -q -n auto -m "not soak and not heavy" tests/unit

gerrit:
	scripts/debian-packages default-jre-headless:java openssh-client:ssh-keygen
	scripts/maven-artifacts "$(THINGS)" src/headgate/testing/servers/gerrit.txt

nova: .venv/bin/python
	PYTHON=$(BIN)/python scripts/nova-environment "$(THINGS)/nova" requirements/nova.txt

sim: .venv/.dev
	$(BIN)/python -m headgate.testing.sim $(SEEDS)
	HOSTILE=1 $(BIN)/python -m headgate.testing.sim $(SEEDS)
	HUB=1 $(BIN)/python -m headgate.testing.sim $(SEEDS)

soak: .venv/.dev sim faults
	SOAK=1 QUEUE_SIM_SEEDS=$(SEEDS) SIM_SEEDS=$(SEEDS) $(BIN)/pytest -q -n $(WORKERS) -k "not at_any_request" tests/sim
	$(BIN)/python -m tests.soak $(CHANGES)
	SOAK=1 HOSTILE_ALL=1 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "" --ignore tests/sim tests

check: .venv/.dev
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check -q src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

faults: .venv/.dev
	$(BIN)/python -m tests.faults

# `make bench day` prints the tables of that name alone; several names may be given
TABLES := run isolation attacks growth viewers components items store merge layouts tenant month queues inventory objects day
BENCHES := $(if $(filter bench,$(MAKECMDGOALS)),$(filter $(TABLES),$(MAKECMDGOALS)))
bench: .venv/.dev
	$(BIN)/python -m bench $(BENCHES)
ifneq ($(BENCHES),)
.PHONY: $(BENCHES)
$(BENCHES): bench ;
endif

proto: .venv/.dev
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/headgate/inventory/wire/*.proto src/headgate/store/etcd/wire/*.proto

fuzz: .venv/.dev
	$(BIN)/python -m headgate.testing.fuzz 60
	$(BIN)/python -m headgate.testing.inventory.calls 60

docs: .venv/.run
	$(BIN)/headgate docs

# The newest versions that pyproject.toml allows: UPGRADE=--upgrade, or UPGRADE="--upgrade-package NAME".
lock: .venv/bin/python
	UPGRADE="$(UPGRADE)" scripts/lock
	$(MAKE) .venv/.dev
	$(BIN)/python scripts/licences > .venv/licences.md && mv .venv/licences.md docs/reference/licences.md

wheel: .venv/.run
	$(BIN)/pip wheel -q --no-deps --no-build-isolation -w dist .

# What installs Headgate elsewhere: a wheel, a Debian package, and an image where podman is. Minutes, so no part of `test`.
# BASE=IMAGE is the Debian of the image; IMAGE_OPTIONS are further options of `podman build`.
packages: wheel chart
	packaging/debian/build
	! command -v podman >/dev/null || podman build $(IMAGE_OPTIONS) $(if $(BASE),--build-arg BASE=$(BASE)) -f packaging/container/Containerfile -t headgate .

# Debian has no helm: where Go is, it is built once, and its sources are checked against Go's database of checksums.
$(THINGS)/helm:
	GOBIN=$(THINGS) GOFLAGS=-buildvcs=false go install helm.sh/helm/v3/cmd/helm@v3.18.6

chart: .venv/.dev $(THINGS)/helm
	$(THINGS)/helm lint --strict --set tenants=x packaging/helm/headgate
	$(BIN)/pytest -q tests/house/test_packages.py

clean:
	rm -rf tests/node/node_modules .venv .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Headgate needs Python 3.11 or newer; none was found. Set PYTHON=/path/to/python." >&2; exit 1; }
	$(PYTHON) -m venv .venv

# For the tests of a client in Node and with an OpenID provider, which are left out where there is no npm or no registry.
tests/node/node_modules: tests/node/package-lock.json
	@! command -v npm >/dev/null || npm ci --prefix tests/node --ignore-scripts --no-audit --no-fund --silent || \
		echo "npm does not reach its registry: clients in Node and logging in are not tested"

# Packages are those of requirements/*.txt, each with its hash; see `lock`.
INSTALL = scripts/install-packages $(BIN)/python requirements/$(1).txt

.venv/.run: .venv/bin/python pyproject.toml requirements/run.txt
	@$(call INSTALL,run)
	touch $@

.venv/.demo: .venv/bin/python pyproject.toml requirements/demo.txt
	@$(call INSTALL,demo)
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml requirements/dev.txt
	@$(call INSTALL,dev)
	touch $@ .venv/.run
