package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const managedGuide = "../docs/managed-mode.md"

// guideBlock is one block of code of a guide.
type guideBlock struct{ language, text string }

// guideBlocks are the blocks of a guide, in their order.
func guideBlocks(t *testing.T, file string) (blocks []guideBlock) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var block *guideBlock
	for line := range strings.Lines(string(data)) {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && block == nil:
			block = &guideBlock{language: strings.TrimSpace(language)}
		case fence:
			blocks, block = append(blocks, *block), nil
		case block != nil:
			block.text += line
		}
	}
	if block != nil || len(blocks) == 0 {
		t.Fatalf("%s: %d blocks, and an open end", file, len(blocks))
	}
	return blocks
}

// guide is someone who types what stands there.
type guide struct {
	t       *testing.T
	dir     string
	ports   *strings.Replacer // of the guide, to free ones
	env     []string
	exports string // that were typed so far
	running []*process
}

func newGuide(t *testing.T) *guide {
	t.Helper()
	g := &guide{t: t, dir: t.TempDir()}
	admin := freePort(t)
	g.ports = strings.NewReplacer("127.0.0.1:8480", freePort(t), "127.0.0.1:8482", freePort(t), "127.0.0.1:8490", freePort(t))
	g.env = []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "IOP_ADMIN_URL=http://" + admin, "IOP_EDGE_ADMIN_LISTEN=" + admin}
	return g
}

// enter types a block. Its exports count for the blocks after it, too. What serves goes on in the background.
func (g *guide) enter(text string) (out string) {
	g.t.Helper()
	text = g.ports.Replace(text)
	var exports, keep string
	for line := range strings.Lines(text) {
		if export, ok := strings.CutPrefix(line, "export "); ok {
			name, _, _ := strings.Cut(export, "=")
			exports += line
			keep += "\nprintf 'export %s=%q\\n' " + name + ` "$` + name + `" >>.exports` // the value: what made it is not run again
		}
	}
	cmd := exec.Command("bash", "-euc", g.exports+text+keep)
	cmd.Dir, cmd.Env = g.dir, append(cleanEnv(), g.env...)
	for _, serves := range []string{"edge", "node", "sim"} {
		if strings.Contains("\n"+text, "\niop "+serves+" ") {
			cmd.Args[2] = strings.Replace(g.exports+text, "iop "+serves+" ", "exec iop "+serves+" ", 1)
			g.exports += exports
			g.running = append(g.running, startCommand(g.t, serves, g.env, cmd))
			return ""
		}
	}
	data, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("%s\n%v: %s", text, err, data)
	}
	if keep != "" {
		file := filepath.Join(g.dir, ".exports")
		values, err := os.ReadFile(file)
		if err == nil {
			err = os.Remove(file)
		}
		if err != nil {
			g.t.Fatal(err)
		}
		g.exports += string(values)
	}
	return string(data)
}

// await repeats a command until its output holds a text: whoever types looks, too.
func (g *guide) await(command, text string) {
	g.t.Helper()
	eventually(g.t, patience, command+" shows "+text, func() bool {
		cmd := exec.Command("bash", "-euc", g.exports+command)
		cmd.Dir, cmd.Env = g.dir, append(cleanEnv(), g.env...)
		out, err := cmd.CombinedOutput()
		return err == nil && strings.Contains(string(out), text)
	})
}

// TestManagedGuide types docs/managed-mode.md from the first block to the last.
func TestManagedGuide(t *testing.T) {
	t.Parallel()
	g := newGuide(t)
	var edge *process
	streamed := false
	for _, block := range guideBlocks(t, managedGuide) {
		switch block.language {
		case "yaml":
			if err := os.WriteFile(filepath.Join(g.dir, "iop.yaml"), []byte(block.text), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		case "sh":
		default:
			t.Fatalf("a block is in %q", block.language)
		}
		if strings.Contains(block.text, "master-key rewrap") {
			edge.signal(syscall.SIGHUP)
			g.await("iop master-key list", " 0 ")
		}
		out := g.enter(block.text)
		switch {
		case strings.Contains(block.text, "iop edge "):
			edge = g.running[len(g.running)-1]
			edge.line("listening", patience)
		case strings.Contains(block.text, "iop sim "):
			g.running[len(g.running)-1].line("http://", patience)
		case strings.Contains(block.text, "iop node "), strings.Contains(block.text, "node-list undeny"):
			g.await("iop nodes --json", `"online"`)
		case strings.Contains(block.text, "curl "):
			streamed = strings.Contains(out, "data: [DONE]")
			if !streamed || !strings.Contains(out, "lease_issued") {
				t.Fatalf("no stream, or no lease in the audit:\n%s", out)
			}
		case strings.Contains(block.text, "rewrap"):
			if !strings.Contains(out, "1 slot resealed") {
				t.Errorf("%s", out)
			}
		}
	}
	if !streamed {
		t.Error("nothing was streamed")
	}
}
