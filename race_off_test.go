//go:build !race

package oncehttp

const raceEnabled = false
