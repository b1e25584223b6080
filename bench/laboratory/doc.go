// Package laboratory runs the worlds of internal/lab over the durable stores: over
// sqlitestore, and over pgstore and redisstore with real servers.
//
// Time is that of the world's bubble, for the servers too: they are real but for
// their wall clock, which the laboratory sets before everything that a store says
// to them. docs/laboratory.md says more.
package laboratory
