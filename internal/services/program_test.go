package services_test

import (
	"os/exec"
	"testing"

	"github.com/oncehttp/oncehttp/internal/services"
)

func TestAProgramIsFoundOrItIsSaidWhyNot(t *testing.T) {
	want, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if path, err := services.Program("sh", "nothing-of-this-name"); path != want || err != nil {
		t.Errorf("got %q, %v, want %q", path, err, want)
	}
	t.Setenv("PATH", t.TempDir()) // without apt-get
	if path, err := services.Program("sh", "nothing-of-this-name"); path != "" || err == nil {
		t.Errorf("without it: got %q, %v, want an error", path, err)
	}
}
