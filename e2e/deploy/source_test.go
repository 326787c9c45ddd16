//go:build docker

package deploy

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// makeGoImage stands for golang's, which can't be pulled here: this machine's toolchain, a shell, the authorities, and the
// modules as a proxy in files.
func makeGoImage(t *testing.T, tag string) {
	t.Helper()
	dir := t.TempDir()
	busybox := needs(t, "busybox")
	addProgram(t, dir, busybox, "/bin/busybox")
	for applet := range strings.FieldsSeq(command(t, nil, busybox, "--list")) {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	goroot := strings.TrimSpace(command(t, nil, "go", "env", "GOROOT"))
	target := filepath.Join(dir, "usr/local/go")
	for _, path := range []string{target, filepath.Join(dir, "etc/ssl/certs"), filepath.Join(dir, "tmp")} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"bin", "lib", "pkg", "src", "go.env", "VERSION"} {
		command(t, nil, "cp", "-RL", filepath.Join(goroot, part), target)
	}
	copyFile(t, "/etc/ssl/certs/ca-certificates.crt", filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
	copyModules(t, filepath.Join(dir, "goproxy"))
	importImage(t, tag, dir, "ENV PATH=/usr/local/go/bin:/bin", "ENV GOPROXY=file:///goproxy", "ENV GOSUMDB=off", "ENV GOTOOLCHAIN=local", "ENV HOME=/tmp")
}

// copyModules makes a module proxy in files of what this machine has downloaded.
func copyModules(t *testing.T, dir string) {
	t.Helper()
	cache := filepath.Join(strings.TrimSpace(command(t, nil, "go", "env", "GOMODCACHE")), "cache/download")
	var files []string
	modules := json.NewDecoder(strings.NewReader(command(t, nil, "go", "mod", "download", "-json")))
	for modules.More() {
		var m struct{ Info, Zip string }
		if err := modules.Decode(&m); err != nil {
			t.Fatal(err)
		}
		files = append(files, m.Info, m.Zip)
	}
	err := filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".mod") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if rel, err := filepath.Rel(cache, file); file != "" && err == nil {
			copyFile(t, file, filepath.Join(dir, rel))
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestImageFromSource builds deploy/Dockerfile as a release would, for both architectures, on a toolchain of this machine.
func TestImageFromSource(t *testing.T) {
	base := "iop-test/go:" + strconv.Itoa(os.Getpid())
	makeGoImage(t, base)
	for goarch := range machines {
		t.Run(goarch, func(t *testing.T) {
			tag := "iop-test/source-" + goarch + ":" + strconv.Itoa(os.Getpid())
			command(t, []string{"DOCKER_BUILDKIT=1"}, docker, "build", "-q", "--platform", "linux/"+goarch, "--build-arg", "GO_IMAGE="+base,
				"-t", tag, "-f", filepath.Join(deployDir, "Dockerfile"), "../..")
			t.Cleanup(func() { _, _ = tryCommand(nil, nil, docker, "rmi", "-f", tag) })
			checkImage(t, tag, goarch)
		})
	}
}

func checkImage(t *testing.T, tag, goarch string) {
	t.Helper()
	var images []struct {
		Architecture string
		Config       struct {
			User        string
			Healthcheck *struct{ Test []string }
		}
	}
	if err := json.Unmarshal([]byte(command(t, nil, docker, "image", "inspect", tag)), &images); err != nil || len(images) != 1 {
		t.Fatalf("%v, %d images", err, len(images))
	}
	image := images[0]
	if image.Architecture != goarch || image.Config.User != "65532:65532" || image.Config.Healthcheck == nil {
		t.Errorf("%+v", image)
	}
	id := strings.TrimSpace(command(t, nil, docker, "create", "--platform", "linux/"+goarch, tag))
	defer func() { _, _ = tryCommand(nil, nil, docker, "rm", "-f", id) }()
	path := filepath.Join(t.TempDir(), "iop")
	command(t, nil, docker, "cp", id+":/iop", path)
	checkStatic(t, path, goarch)
}
