# SPDX-License-Identifier: BSD-4-Clause
# Every target starts with the same idempotent set-up (tools/operator does what is missing) and says what it does.
.PHONY: help setup demo test test-front test-modes crash test-podman5 agents bench bench-front bench-modes bench-routed lint unit requirements reportshot
.DEFAULT_GOAL := help
operator := ./tools/operator

help:           ## this list
	@sed -n 's/^\([a-z0-9-]*\): *## */  make \1	/p' Makefile

setup:          ## prepare this machine (as root) or check it (as an ordinary user)
	@echo 'make setup: preparing or checking this machine'
	@$(operator) true
	@$(operator) asf-play doctor

demo:           ## the main job, end to end, with an embedded model: needs no key and no network but the registries
	@echo 'make demo: set-up, images, one verified session, closed again'
	@$(operator) python3 tools/demo.py

test:           ## everything: set-up, images, linters, unit and end-to-end tests
	@echo 'make test: set-up, images, then all tests in a closed network'
	@./tools/run_tests

test-modes:     ## the network modes alone: rules, oracle, isolated, routed, L1t, upstream proxy, policy, molecule
	@echo 'make test-modes: set-up, images, then the tests of the network modes in a closed network'
	@./tools/run_tests $$(./tools/mode_tests)

test-podman5:   ## the end-to-end tests on a Podman 5, in a Debian 13 userland (as root; in a folder, nothing is installed)
	@echo 'make test-podman5: userland, images, then the end-to-end tests in a closed network'
	@ASF_USERLAND=trixie ./tools/run_tests tests/e2e

agents:         ## every shipped agent with its real client, two sessions each; writes build/agents.json
	@echo 'make agents: set-up, all images, then a course for every agent in a closed network'
	@$(operator) python3 tools/build_all.py
	@./tools/testnet python3 tools/agents.py

crash:          ## the crash matrix: killed, full, hung, interrupted at every step; writes build/crash.json
	@echo 'make crash: set-up, images, then every case of the crash matrix in a closed network'
	@$(operator) python3 tools/build_all.py demo
	@./tools/testnet python3 tools/crash.py

bench:          ## open, verify and close against the bare commands; writes build/bench.json
	@echo 'make bench: set-up, images, then interleaved measurements'
	@$(operator) python3 tools/bench.py

test-front:     ## the inference front: Go tests, fuzzing, race detector, then through real LiteLLM to a fake provider
	@echo 'make test-front: Go tests of the front, then its end-to-end tests in a closed network'
	@$(operator) pytest -q tests/go/test_caddy.py tests/go/test_front.py
	@$(operator) sh -c 'cd roles/egress_caddy/files/caddy && GOTOOLCHAIN=local GOPROXY=off GOFLAGS="-buildvcs=false -mod=readonly" go test ./asf -run "^$$" -fuzz FuzzReadHello -fuzztime 100000x'
	@$(operator) python3 tools/build_all.py demo
	@./tools/testnet pytest -q tests/e2e/test_broker.py tests/e2e/test_revision.py tests/e2e/test_rotation.py

bench-modes:    ## open in each network mode against the bare commands; adds to build/bench.json
	@echo 'make bench-modes: set-up, images, then interleaved measurements in a closed network'
	@$(operator) python3 tools/build_all.py
	@./tools/testnet python3 tools/bench.py --part modes

bench-front:    ## the front against Caddy's bare reverse_proxy, and LiteLLM for scale; writes build/bench-front.json
	@echo 'make bench-front: measurements of the front in turns with a bare proxy, then through LiteLLM'
	@$(operator) sh -c 'ASF_BENCH_FRONT="$$PWD/build/bench-front.json" && export ASF_BENCH_FRONT && cd roles/egress_caddy/files/caddy && GOTOOLCHAIN=local GOPROXY=off GOFLAGS="-buildvcs=false -mod=readonly" go test ./asf -run xxx -bench BenchmarkFront -benchtime 1x'
	@$(operator) python3 tools/build_all.py demo
	@$(operator) python3 tools/bench_broker.py

reportshot:     ## screenshots of the last session's report, in build/report (needs Chromium)
	@echo 'make reportshot: set-up, then headless Chromium on the last report'
	@$(operator) tools/report_shot

bench-routed:   ## traffic through a gateway against the same user-mode network bare; writes build/bench-routed.json
	@echo 'make bench-routed: set-up, images, then interleaved measurements in a closed network'
	@$(operator) python3 tools/build_all.py demo
	@./tools/testnet python3 tools/bench_routed.py

lint:           ## ruff, mypy, yamllint, ansible-lint, go vet, licence rules
	@echo 'make lint: set-up, then the linters'
	@$(operator) pytest tests/lint

unit:           ## tests that need no Podman
	@echo 'make unit: set-up, then the unit tests'
	@$(operator) pytest tests/unit

requirements:   ## renew the hash-locked requirement files (needs uv)
	@echo 'make requirements: resolving requirements/*.in'
	@./tools/lock_requirements
