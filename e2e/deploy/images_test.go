//go:build docker

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// docker is the engine's command. Debian's comes first: another one may want plugins to build an image.
var docker = func() string {
	const debian = "/usr/bin/docker"
	if _, err := os.Stat(debian); err == nil {
		return debian
	}
	return "docker"
}()

// buildImage makes an image of a Dockerfile in deploy.
func buildImage(t *testing.T, tag, dockerfile, context string, args ...string) {
	t.Helper()
	command(t, []string{"DOCKER_BUILDKIT=0"}, docker, append([]string{"build", "-q", "-t", tag, "-f", filepath.Join(deployDir, dockerfile)}, append(args, context)...)...)
	t.Cleanup(func() { _, _ = tryCommand(nil, nil, docker, "rmi", "-f", tag) })
}

// importImage makes an image of a directory.
func importImage(t *testing.T, tag, dir string, changes ...string) {
	t.Helper()
	args := []string{"-c", `tar -C "$0" --numeric-owner --owner=0 --group=0 -c . | "$@"`, dir, docker, "import"}
	for _, c := range changes {
		args = append(args, "-c", c)
	}
	command(t, nil, "sh", append(args, "-", tag)...)
	t.Cleanup(func() { _, _ = tryCommand(nil, nil, docker, "rmi", "-f", tag) })
}

// addProgram copies a program into an image's directory, with the libraries that it is linked with.
func addProgram(t *testing.T, dir, program, at string) {
	t.Helper()
	files := map[string]string{program: at}
	// Of a static program ldd says so, and fails.
	if out, err := tryCommand(nil, nil, "ldd", program); err == nil {
		for _, library := range regexp.MustCompile(`/\S+\.so\S*`).FindAllString(out, -1) {
			files[library] = library
		}
	}
	for from, to := range files {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// makeIOPImage is `make docker`, of a binary of its own and under a tag of its own.
func makeIOPImage(t *testing.T, tag string) {
	t.Helper()
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{"etc/ssl/certs": 0o755, "tmp": 0o755, "var/lib/iop": 0o700, "run/iop": 0o700} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	buildIOP(t, filepath.Join(dir, "iop"), runtime.GOARCH)
	buildImage(t, tag, "local.Dockerfile", dir)
}

// makePrometheusImage has the machine's Prometheus at the place of the real image's: none can be pulled here.
func makePrometheusImage(t *testing.T, tag string) {
	t.Helper()
	dir := t.TempDir()
	addProgram(t, dir, needs(t, "prometheus"), "/bin/prometheus")
	for _, path := range []string{"etc/prometheus", "prometheus"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "prometheus"), 0o777); err != nil {
		t.Fatal(err)
	}
	importImage(t, tag, dir, `ENTRYPOINT ["/bin/prometheus"]`, "USER 65534")
}

// makeToolsImage stands on the machine's busybox instead of the one that would be pulled.
func makeToolsImage(t *testing.T, tag, iopTag, shellTag string) {
	t.Helper()
	dir, busybox := t.TempDir(), needs(t, "busybox")
	addProgram(t, dir, busybox, "/bin/busybox")
	for applet := range strings.FieldsSeq(command(t, nil, busybox, "--list")) {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	importImage(t, shellTag, dir)
	buildImage(t, tag, "tools.Dockerfile", deployDir, "--build-arg", "IOP_IMAGE="+iopTag, "--build-arg", "SHELL_IMAGE="+shellTag)
}

// makeOllamaImage has the simulator in Ollama's place.
func makeOllamaImage(t *testing.T, tag, iopTag string) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "Dockerfile"), "FROM "+iopTag+"\nHEALTHCHECK NONE\n"+
		`CMD ["sim", "--flavour", "ollama", "--listen", ":11434", "--models", "llama3.2:1b"]`+"\n")
	command(t, []string{"DOCKER_BUILDKIT=0"}, docker, "build", "-q", "-t", tag, dir)
	t.Cleanup(func() { _, _ = tryCommand(nil, nil, docker, "rmi", "-f", tag) })
}

// buildIOP builds the binary as the image has it, for this machine or for another architecture.
func buildIOP(t *testing.T, path, goarch string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "../../cmd/iop")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+goarch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build iop for %s: %v\n%s", goarch, err, out)
	}
}

// TestBinaryForEachArchitecture: Go makes a static binary for both, and needs no emulation for it.
func TestBinaryForEachArchitecture(t *testing.T) {
	t.Parallel()
	for goarch := range machines {
		t.Run(goarch, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "iop")
			buildIOP(t, path, goarch)
			checkStatic(t, path, goarch)
		})
	}
}
