// Package lab is a laboratory: it runs both halves of oncehttp, and net/http
// between them, in a world where everything that can go wrong does, and checks
// afterwards that every promise was kept.
//
// It holds nothing but tests. docs/laboratory.md says what it does, what it
// checks, and how to read what it prints.
package lab
