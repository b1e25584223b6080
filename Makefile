# A fresh clone with Go, gcc (for the race detector) and make needs nothing else.

FUZZTIME ?= 5m
COUNT ?= 20
SEEDS ?= 20000
FROM ?= 1
KILLS ?= 2000

# Stamping a binary with its commit fails in a clone that somebody else owns,
# and nothing here reads the stamp.
GOFLAGS := $(GOFLAGS) -buildvcs=false
export GOFLAGS

.PHONY: test lab crash mutants soak bench bench-stores storm lint bench-proxy release-check fmt page-figures

# Every test of every module: scripts/test says how.
test:
	@scripts/test

# Worlds in which everything goes wrong: SEEDS of them from FROM on, or the one of
# SEED with its timeline. With STORE=sqlite, postgres or redis over that store.
# docs/laboratory.md says more.
lab:
	@go test -count=1 -timeout=0 -v $(if $(STORE),-run='^TestLab$$/^$(STORE)$$' ./bench/laboratory,-run='^TestLab$$' ./internal/lab) \
		$(if $(SEED),-seed=$(SEED),-seeds=$(SEEDS) -from=$(FROM))

# A server over each store killed KILLS times in the middle of its work, by chance or
# as SEED says; STORE=Redis for one of them. docs/crash.md says more.
crash:
	@go test -count=1 -timeout=0 -v -p=1 -run='^TestKill$$/$(STORE)' ./bench/crash ./cmd/onceproxy -kills=$(KILLS) $(if $(SEED),-killseed=$(SEED))

# Whether the laboratory notices every mistake that it has to.
mutants:
	@go run ./internal/lab/mutants

# What is too long for test: fuzzing, repetition, long random runs, mutants.
soak:
	@scripts/test -soak -fuzztime=$(FUZZTIME) -count=$(COUNT)
	@$(MAKE) mutants

# This library beside what a program would use in its place: tables, and what is
# promised of them, also in docs/benchmarks.md. Five minutes.
bench:
	@go -C bench build -o ../bin/compare ./compare
	@bin/compare -raw=bin/compare.txt $(if $(wildcard docs/benchmarks.md),-write=docs/benchmarks.md)

# A thousand clients in outages, this library beside others: writes the section
# on storms of docs/benchmarks.md and its figures, and fails if a promise is broken.
storm:
	@go test -count=1 -timeout=0 -run='^TestStorm$$' ./bench/storm -docs=$(CURDIR)/docs
# The durable stores beside what their servers can do, in five minutes on a machine
# that does nothing else. bench/stores has flags for less, and for 10 million records.
bench-stores:
	@mkdir -p docs/figures
	@go run ./bench/stores -figure docs/figures/stores.svg

lint:
	@scripts/lint

# onceproxy beside a bare ReverseProxy, with keys over SQLite, and its memory under load
# for five minutes.
bench-proxy:
	go test -run='^TestMemoryStaysFlat$$' -memorytime=5m -timeout=20m -v -bench=. -benchtime=1x ./cmd/onceproxy

# Whether importers carry more than they must: tools/releasecheck says how.
release-check:
	GOWORK=off go -C tools build -o ../bin/releasecheck ./releasecheck
	bin/releasecheck

# The pictures of the operator's page in docs/figures, drawn by a real browser.
page-figures:
	@mkdir -p docs/figures
	go test -count=1 -run='^TestPagesAreReadable' ./cmd/onceproxy/pagetest -figures=$(CURDIR)/docs/figures

fmt:
	gofmt -w .
