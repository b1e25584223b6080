package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// fuzzTargets finds every fuzz target of the workspace at dir.
func fuzzTargets(dir string) ([]testID, error) {
	cmd := exec.Command("go", "test", "-json", "-list=^Fuzz", "work")
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		os.Stderr.Write(out)
		return nil, fmt.Errorf("listing the fuzz targets: %w", err)
	}
	var ids []testID
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action != "output" {
			continue
		}
		if name := strings.TrimSpace(e.Output); strings.HasPrefix(name, "Fuzz") {
			ids = append(ids, testID{e.Package, name})
		}
	}
	return ids, lines.Err()
}
