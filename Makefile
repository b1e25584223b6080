# A fresh clone with Go, gcc (for the race detector) and make needs nothing else.

FUZZTIME ?= 5m
COUNT ?= 20

# Stamping a binary with its commit fails in a clone that somebody else owns,
# and nothing here reads the stamp.
GOFLAGS := $(GOFLAGS) -buildvcs=false
export GOFLAGS

.PHONY: test soak bench lint release-check fmt

# Every test of every module: scripts/test says how.
test:
	@scripts/test

# What is too long for test: fuzzing, repetition, long random runs.
soak:
	@scripts/test -soak -fuzztime=$(FUZZTIME) -count=$(COUNT)

bench:
	go test -run='^$$' -bench=. -benchmem work

lint:
	@scripts/lint

# Whether importers carry more than they must: tools/releasecheck says how.
release-check:
	GOWORK=off go -C tools build -o ../bin/releasecheck ./releasecheck
	bin/releasecheck

fmt:
	gofmt -w .
