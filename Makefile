# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
SIM_SEEDS ?= 5000
WORKERS := $(shell expr $$(nproc) + 1)
SEEDS ?= 10000

.PHONY: sim fuzz demo test check bench docs proto clean faults

demo: .venv/.demo
	$(BIN)/headgate demo

test: .venv/.dev check
	scripts/debian-packages default-jre-headless:java zookeeper:/usr/share/zookeeper/bin/zkServer.sh
	scripts/debian-packages etcd-server:etcd etcd-client:etcdctl
	scripts/debian-packages bubblewrap:bwrap chromium:chromium openssh-server:/usr/sbin/sshd openssh-client:ssh postgresql:pg_ctlcluster
	SIM_SEEDS=$(SIM_SEEDS) $(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests

sim: .venv/.dev
	$(BIN)/python -m headgate.testing.sim $(SEEDS)

check: .venv/.dev
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check -q src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

faults: .venv/.dev
	$(BIN)/python -m tests.faults

bench: .venv/.dev
	$(BIN)/python -m bench

proto: .venv/.dev
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/headgate/inventory/wire/*.proto src/headgate/store/etcd/wire/*.proto

fuzz: .venv/.dev
	$(BIN)/python -m headgate.testing.fuzz 60
	$(BIN)/python -m headgate.testing.inventory.calls 60

docs: .venv/.run
	$(BIN)/headgate docs

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Headgate needs Python 3.11 or newer; none was found. Set PYTHON=/path/to/python." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python pyproject.toml
	$(BIN)/pip install -q -e .
	touch $@

.venv/.demo: .venv/bin/python pyproject.toml
	$(BIN)/pip install -q -e '.[ansible]'
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml
	$(BIN)/pip install -q -e '.[dev]'
	touch $@ .venv/.run
