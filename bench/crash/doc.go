// Package crash kills servers with SIGKILL, and the databases behind them, in the
// middle of their work, and counts what took effect. It has tests only: see
// docs/crash.md. How it is done is in internal/crash.
package crash
