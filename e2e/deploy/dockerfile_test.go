package deploy

import (
	"strings"
	"testing"
)

// TestImagesAreTheSame: an image of a binary built outside ends as the one from source does.
func TestImagesAreTheSame(t *testing.T) {
	source, local := readFile(t, deployDir, "Dockerfile"), readFile(t, deployDir, "local.Dockerfile")
	const from = "# Neither root nor a user of any host."
	_, a, okA := strings.Cut(source, from)
	_, b, okB := strings.Cut(local, from)
	if !okA || !okB || a != b {
		t.Errorf("deploy/Dockerfile ends with:\n%s\nand deploy/local.Dockerfile with:\n%s", a, b)
	}
}
