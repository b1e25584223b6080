// Package lab is a laboratory: it runs both halves of oncehttp, and net/http
// between them, in a world where everything that can go wrong does, and checks
// afterwards that every promise was kept.
//
// It is for tests alone: those here, over MemoryStores, and those of
// bench/laboratory, over the durable stores. docs/laboratory.md says what it does,
// what it checks, and how to read what it prints.
package lab
