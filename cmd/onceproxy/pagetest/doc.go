// Package pagetest drives the operator's page of onceproxy in a real browser. It is a
// module of its own, so that the program does not carry what drives a browser.
//
//	make page-figures
//
// draws the pictures in docs/figures.
package pagetest
