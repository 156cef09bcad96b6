# SPDX-License-Identifier: GPL-3.0-or-later
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv deps lab check sanity molecule test slow soak demo clean

PYTHON ?= python3
CACHE := $(or $(GPUOPS_CACHE),$(HOME)/.cache/gpuops)
GATES := $(CACHE)/venv/bin/python tests/gates/run.py
LAB := $(CACHE)/venv/bin/python tests/lab/lab
export PATH := $(PATH):$(CACHE)/go/bin
export PYTHONDONTWRITEBYTECODE = 1

help: ## Show what there is to do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: ## Make the development environment (requirements-dev.txt)
	@$(PYTHON) tests/gates/bootstrap.py

deps: ## Install what the machine lacks: Debian packages (debian-packages.txt; root), Go
	@$(PYTHON) tests/gates/system_packages.py
	@$(PYTHON) tests/gates/bootstrap.py
	@$(PYTHON) tests/gates/go_toolchain.py

lab: deps ## Build the parts of the laboratory: roots, programs, images, packages
	@$(LAB) build

check: venv ## Linters and unit tests: the inner loop, under two minutes
	@$(GATES) check

sanity: venv ## ansible-test sanity with every supported ansible-core
	@$(GATES) sanity

molecule: deps ## The Molecule scenario, on a host of the laboratory (root)
	@$(GATES) molecule

test: deps ## Every gate and test, the laboratory included (root)
	@$(GATES) test

slow: deps ## Debian's own NVIDIA driver, compiled for real, an upgrade of four hosts, and variations of tests (root)
	@$(GATES) slow

soak: deps ## Campaigns of seeded cuts, lives and controllers: hours; SOAK="cuts --minutes 30" runs a part (root)
	@$(LAB) build
	@$(CACHE)/venv/bin/python tests/soak/soak.py $(SOAK)

demo: deps ## Two GPU hosts in a laboratory, from bare to validated Kubernetes nodes (root)
	@tests/lab/demo

clean: venv ## Stop the laboratory and remove this checkout's scratch files; built parts stay
	@$(LAB) down
	@rm -rf "$$($(PYTHON) tests/gates/workspace.py --work)" tests/output .pytest_cache .mypy_cache .ruff_cache .hypothesis
