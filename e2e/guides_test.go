package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// beginner is someone who follows a document to the letter.
type beginner struct {
	*guide
	root     string // of the repository
	streamed int    // answers that came to their end
}

// follow types each block of a document, in its order. Blocks of text are for reading.
func follow(t *testing.T, file string, env ...string) *beginner {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	b := &beginner{guide: newGuide(t), root: root}
	listen := freePort(t)
	admin := strings.TrimPrefix(b.env[1], "IOP_ADMIN_URL=http://")
	b.ports = strings.NewReplacer("127.0.0.1:8480", listen, "127.0.0.1:8481", admin, "127.0.0.1:8490", freePort(t), "go run ./cmd/iop", "iop")
	b.env = append(append(b.env, env...), "IOP_EDGE_LISTEN="+listen, "IOP_DEV_LISTEN="+freePort(t), "IOP_DEV_ADMIN_LISTEN="+freePort(t))
	for _, block := range guideBlocks(t, file) {
		switch block.language {
		case "sh":
			b.shell(block.text)
		case "python":
			b.program("hello.py", block.text, filepath.Join(sdkDir(t), "python", "bin", "python"))
		case "js":
			if err := os.Symlink(filepath.Join(sdkDir(t), "openai6", "node_modules"), filepath.Join(b.dir, "node_modules")); err != nil {
				t.Fatal(err)
			}
			b.program("hello.mjs", block.text, "node")
		case "yaml":
			if err := os.WriteFile(filepath.Join(b.dir, "iop.yaml"), []byte(block.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "", "text":
		default:
			t.Fatalf("a block is in %q", block.language)
		}
	}
	return b
}

// serving are command lines that go on until they are ended.
var serving = regexp.MustCompile(`(?m)^(?:go run \./cmd/iop|iop) (dev|edge|node|sim)(?: .*)?$`)

func (b *beginner) shell(text string) {
	b.t.Helper()
	m := serving.FindStringSubmatch(text)
	switch {
	case strings.Contains(text, "make "):
		b.inRepository(text)
	case m == nil || strings.Contains(text, "--check-config"):
		out := b.enter(text)
		if strings.Contains(text, "curl -N") {
			b.answered(out)
		}
		if strings.Contains(out, "failed  ") {
			b.t.Errorf("%s\n%s", text, out)
		}
	default:
		b.serve(m[1], strings.TrimSpace(text))
	}
}

// inRepository types what is typed in the clone.
func (b *beginner) inRepository(text string) {
	b.t.Helper()
	cmd := exec.Command("bash", "-euc", text)
	cmd.Dir, cmd.Env = b.root, append(cleanEnv(), b.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%s\n%v: %s", text, err, out)
	}
}

// serve types one command in a terminal of its own, and waits until it is ready.
func (b *beginner) serve(command, text string) {
	b.t.Helper()
	cmd := exec.Command("bash", "-euc", b.exports+"exec "+b.ports.Replace(text))
	cmd.Dir = b.dir
	p := startCommand(b.t, command, b.env, cmd)
	switch command {
	case "dev":
		line := p.line("curl -N ", 60*time.Second)
		pasted := exec.Command("bash", "-euc", strings.TrimSpace(line))
		pasted.Env = cleanEnv()
		out, err := pasted.Output()
		if err != nil {
			b.t.Fatalf("%s: %v", line, err)
		}
		b.answered(string(out))
		p.signal(syscall.SIGINT)
		<-p.done
	case "edge":
		p.line("listening", patience)
	case "node":
		b.await("iop nodes --json", `"online"`)
	case "sim":
		p.line("http://", patience)
	}
}

// program runs a program with the text, as it stands there.
func (b *beginner) program(name, text, interpreter string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(b.ports.Replace(text)), 0o600); err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command("bash", "-euc", b.exports+interpreter+" "+name)
	cmd.Dir, cmd.Env = b.dir, append(cleanEnv(), b.env...)
	out, err := cmd.CombinedOutput()
	if err != nil || len(strings.Fields(string(out))) < 3 {
		b.t.Fatalf("%s: %v: %s", name, err, out)
	}
	b.streamed++
}

func (b *beginner) answered(out string) {
	b.t.Helper()
	if !strings.Contains(out, "data: [DONE]") {
		b.t.Fatalf("no stream: %s", out)
	}
	b.streamed++
}

// TestGettingStarted follows docs/getting-started.md.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	if b := follow(t, "../docs/getting-started.md"); b.streamed != 2 {
		t.Errorf("%d answers were streamed", b.streamed)
	}
}

// TestReadme follows README.md, beside an Ollama with the model that it asks for.
func TestReadme(t *testing.T) {
	t.Parallel()
	sim := start(t, "ollama", nil, "sim", "--listen", "127.0.0.1:0", "--json", "--models", "llama3.2")
	var ready struct{ URL string }
	sim.jsonLine("url", patience, &ready)
	if b := follow(t, "../README.md", "IOP_NODE_PROVIDERS=sim="+ready.URL); b.streamed != 4 {
		t.Errorf("%d answers were streamed", b.streamed)
	}
}
