//go:build docker

package deploy

import (
	"debug/elf"
	"testing"
)

// machines are the ELF names of what the tests call an architecture.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkStatic checks that a program is for that architecture, and needs no library.
func checkStatic(t *testing.T, path, goarch string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Machine != machines[goarch] {
		t.Errorf("it is for %s", f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it is linked dynamically: %s", p.Type)
		}
	}
}
