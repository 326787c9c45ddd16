# `make` alone lists the targets. Everything they need beside Go, Python and Node.js they install under .cache/; PostgreSQL
# is installed by apt-get where that is possible.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help

RESULTS   := .cache/test
TESTCOUNT := .cache/bin/testcount

# Where go test runs: everything; the end-to-end tests (real processes, real SDKs); and the rest.
ALL  = $(shell go list ./... ./.ci/testcount)
E2E  = $(filter iop/e2e%,$(ALL))
UNIT = $(filter-out iop/e2e%,$(ALL))

# Fails, and prints them, where files are not as gofmt writes them.
UNFORMATTED = ! git ls-files -co --exclude-standard "*.go" | xargs gofmt -l | grep .

# The race detector checks each pointer that is made from a number as well. SQLite, which was C once, does little else: that
# alone is half the time of a test that opens a state.
RACE = -race -gcflags=modernc.org/sqlite/lib=-d=checkptr=0

# How long `make fuzz` spends on each target, and what `make bench` runs.
FUZZTIME  ?= 30s
BENCH     ?= .
BENCHTIME ?= 1s
COUNT     ?= 1

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: dev
dev: ## Edge and Node in one process, on a provider found here or on the built-in simulator
	@go run ./cmd/iop dev

.PHONY: build
build: ## bin/iop, one static binary
	@CGO_ENABLED=0 go build -trimpath -ldflags="-s -w -X main.revision=$$(git rev-parse HEAD 2>/dev/null)" -o bin/iop ./cmd/iop

.PHONY: check
check: ## what to run before each commit, under two minutes: format, vet, staticcheck, short tests
	@$(UNFORMATTED) || { echo "not formatted: gofmt -w"; exit 1; }
	@go vet $(ALL)
	@go tool staticcheck $(ALL)
	@go test -short $(UNIT)

# Not part of them: what it compiles first, for systems that no test runs on, takes minutes.
.PHONY: vet-others
vet-others: ## vet for Windows and macOS, tests too
	@for os in windows darwin; do GOOS=$$os go vet ./...; done

.PHONY: test
test: ## everything that decides whether a change may land; the last line is "N passed, N failed"
	@rm -rf $(RESULTS); mkdir -p $(RESULTS) .cache/bin
	@go build -o $(TESTCOUNT) ./.ci/testcount
	@status=0; \
	$(MAKE) -k test-static test-unit test-plain test-postgres test-docker test-e2e || status=1; \
	echo; $(TESTCOUNT) sum $(RESULTS)/summary \
		$(RESULTS)/{format,vet,staticcheck,govulncheck,unit,plain,postgres,docker,e2e}.json || status=1; \
	exit $$status

.PHONY: test-static
test-static: $(TESTCOUNT)
	@status=0; check() { $(TESTCOUNT) check $(RESULTS)/$$1.json "$$@" || status=1; }; \
	check format bash -c '$(UNFORMATTED)'; \
	check vet go vet -tags docker,engine,tables,spire ./... ./.ci/testcount; \
	check staticcheck go tool staticcheck $(ALL); \
	check govulncheck .ci/govulncheck; \
	exit $$status

.PHONY: test-unit
test-unit: $(TESTCOUNT) ## every test of the packages, with the race detector, in random order
	@go test -json $(RACE) -shuffle=on -timeout 20m $(UNIT) 2>&1 | $(TESTCOUNT) read $(RESULTS)/unit.json

# What counts allocations, or needs many steps and no goroutines, is in files that the race detector's run leaves out, or
# does more here.
.PHONY: test-plain
test-plain: $(TESTCOUNT) ## the tests that the race detector would make meaningless or endless
	@go test -json -count=1 -timeout 10m -run '^(TestAllocations|TestUsageSummaryIsBounded|TestPolicies.*|TestMillionPrompts|TestRandomSteps)$$' \
		./tunnel ./state ./gateway/admission 2>&1 | $(TESTCOUNT) read $(RESULTS)/plain.json

# Counts as one test, which is skipped where PostgreSQL is not and can't be installed.
.PHONY: test-postgres
test-postgres: $(TESTCOUNT) ## the tests of the state on a throw-away PostgreSQL server
	@$(TESTCOUNT) check $(RESULTS)/postgres.json postgres .ci/postgres go test -count=1 -timeout 10m ./state

# Part of `make test`: it takes a minute and a half, most of it waiting, and nothing else shows that the container files work.
# Counts as one test, which is skipped where there is no Docker engine and none can be started.
.PHONY: test-docker
test-docker: $(TESTCOUNT) ## the compose stack brought up, used, broken and taken down on a Docker engine
	@$(TESTCOUNT) check $(RESULTS)/docker.json docker .ci/docker go test -tags docker -count=1 -timeout 15m -run '^(TestComposeStack|TestUnitFilters)$$' ./e2e/deploy

# Not part of it: it compiles everything anew, in a container and for another architecture, which takes minutes.
.PHONY: test-image
test-image: ## the image from source: the stages of deploy/Dockerfile, for amd64 and arm64
	@.ci/docker go test -tags docker -count=1 -v -timeout 30m -run '^(TestImageFromSource|TestBinaryForEachArchitecture)$$' ./e2e/deploy

.PHONY: test-e2e
test-e2e: $(TESTCOUNT) sdk programs browser ## real processes, real SDKs, a real browser, faults
	@go test -json -count=1 -timeout 60m $(E2E) 2>&1 | $(TESTCOUNT) read $(RESULTS)/e2e.json

$(TESTCOUNT): $(wildcard .ci/testcount/*.go)
	@mkdir -p $(RESULTS) .cache/bin
	@go build -o $@ ./.ci/testcount

.PHONY: programs
programs:
	@.ci/programs nginx /usr/lib/nginx/modules/ngx_stream_module.so caddy promtool sqlite3 systemd-analyze || true

.PHONY: sdk
sdk: ## install the SDKs that the end-to-end tests drive, under .cache/sdk
	@e2e/sdk/setup.sh

.PHONY: browser
browser: ## install what the console's tests drive: Chromium by apt-get where it is missing, axe-core under .cache/axe
	@e2e/browser/setup.sh

.PHONY: test-engine
test-engine: ## the whole path on a real inference engine; builds llama.cpp the first time (ten minutes)
	@e2e/engine/setup.sh
	@go test -tags engine -count=1 -v -timeout 20m ./e2e/engine/

.PHONY: test-spire
test-spire: ## managed mode with identities from SPIRE; builds SPIRE the first time (half an hour)
	@e2e/spire/setup.sh
	@go test -tags spire -count=1 -v -timeout 10m -run TestManagedSpire ./e2e

.PHONY: bench
bench: ## Go benchmarks, in benchstat's format: BENCH=regexp, BENCHTIME=1s, COUNT=1
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -count $(COUNT) -timeout 60m $(UNIT) \
		| grep -vE '^(\?|PASS|ok) ' | grep -v '^PASS$$'

.PHONY: bench-scale
bench-scale: ## memory and CPU time of an Edge with 2,000 streams, and with 1,000 idle Nodes; four minutes
	@go run ./e2e/scale streams
	@go run ./e2e/scale nodes

.PHONY: bench-policies
bench-policies: ## the selection policies on a simulated fleet, as a table; two minutes
	@go test -tags tables -count=1 -v -run TestPoliciesTables ./gateway/admission

.PHONY: fuzz
fuzz: ## each fuzz target in turn: FUZZTIME=30s
	@for package in $(UNIT); do \
		dir=$$(go list -f '{{.Dir}}' $$package); \
		for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$dir/*_test.go 2>/dev/null | cut -c6-); do \
			echo "fuzz $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

.PHONY: generate
generate: ## what is made from other files: the Go code of the wire contract, the references in docs
	@go run ./tunnel/wire/protogen tunnel/wire
	@go test ./cmd/iop -count=1 -run '^TestReferencesAreCurrent$$' -update

.PHONY: docker
docker: build ## the container image iop:dev, from bin/iop
	@rm -rf bin/image && mkdir -p bin/image/{etc/ssl/certs,var/lib/iop,run/iop,tmp} && chmod 700 bin/image/{var/lib/iop,run/iop}
	@cp bin/iop bin/image/
	@cp -L /etc/ssl/certs/ca-certificates.crt bin/image/etc/ssl/certs/ || echo "no authorities here: mount some, or set IOP_NODE_CA"
	@docker build -q -t iop:dev -f deploy/local.Dockerfile bin/image

.PHONY: clean
clean: ## remove what was built and installed here
	@rm -rf bin .cache
