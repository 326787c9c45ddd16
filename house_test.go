// Package iop_test holds the rules of this repository as tests: what no compiler checks and every reader relies on.
// ARCHITECTURE.md says them in words.
package iop_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rooms are the top-level packages, and which of them each may import. A room's sub-packages are part of it. What is
// not in here fails, so that a new room is a decision.
var rooms = map[string][]string{
	// The ground floor.
	"execution": {},
	"lease":     {"execution"},
	"filewatch": {},
	"identity":  {"filewatch"},
	"state":     {"execution", "filewatch"},
	// Wire formats.
	"openai": {"execution"},
	"tunnel": {"execution"},
	// The programs.
	"gateway":   {"execution", "filewatch", "lease", "identity", "state", "openai", "tunnel"},
	"nodeagent": {"execution", "lease", "identity", "openai", "tunnel"},
	"sim":       {"openai"},
	"bench":     {"openai"},
	// The console.
	"web": {"execution", "state", "gateway"},
	// The binary.
	"cmd": {"execution", "lease", "identity", "state", "openai", "tunnel", "gateway", "nodeagent", "sim", "bench", "web"},
	// Tests of the whole, which drive the binary from outside.
	"e2e": {"execution", "state", "openai", "tunnel", "sim", "bench", "nodeagent", "gateway"},
	".ci": {},
}

// floors stands for how high each room lies: a test may use its neighbours, but nothing that lies higher.
var floors = [][]string{
	{"execution", "filewatch"},
	{"lease", "identity", "state"},
	{"openai", "tunnel"},
	{"gateway", "nodeagent", "sim", "bench"},
	{"web"},
	{"cmd", "e2e", ".ci"},
}

// homes says which rooms alone may import a library: what it does is their business.
var homes = map[string][]string{
	"github.com/spf13/":             {"cmd"},
	"github.com/caarlos0/env":       {"cmd"},
	"github.com/coder/websocket":    {"tunnel", "e2e"},
	"modernc.org/sqlite":            {"state"},
	"github.com/pressly/goose":      {"state"},
	"github.com/openai/openai-go":   {"e2e"},
	"github.com/chromedp/":          {"e2e"},
	"github.com/getkin/kin-openapi": {}, // for tests
	"database/sql":                  {"state"},
	"go.yaml.in/yaml":               {"gateway"},
	"github.com/go-jose/go-jose":    {"lease"},
	"github.com/spiffe/go-spiffe":   {"identity"},
	"google.golang.org/grpc":        {"identity"},
}

// skippedDirs hold nothing of ours, or nothing of the repository.
var skippedDirs = []string{".git", ".cache", "bin", "iop-data", "node_modules", "testdata"}

// goFile is one parsed file.
type goFile struct {
	path string // from the root, with slashes
	room string // or empty: a file at the root
	test bool
	ast  *ast.File
}

func (f goFile) dir() string { return path.Dir(f.path) }

// walk calls visit for every file of the repository, with its path from the root.
func walk(t *testing.T, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skippedDirs, d.Name()):
			return filepath.SkipDir
		case d.Type().IsRegular() && p != ".git": // a worktree's is a file
			visit(filepath.ToSlash(p))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func goFiles(t *testing.T) (files []goFile, fset *token.FileSet) {
	t.Helper()
	fset = token.NewFileSet()
	walk(t, func(p string) {
		if !strings.HasSuffix(p, ".go") {
			return
		}
		parsed, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			return
		}
		room, _, inRoom := strings.Cut(p, "/")
		if !inRoom {
			room = ""
		}
		files = append(files, goFile{path: p, room: room, test: strings.HasSuffix(p, "_test.go"), ast: parsed})
	})
	if len(files) < 5 {
		t.Fatalf("found %d Go files: not run at the root of the repository?", len(files))
	}
	return files, fset
}

func floorOf(room string) int {
	return slices.IndexFunc(floors, func(floor []string) bool { return slices.Contains(floor, room) })
}

func TestImportsRunDownward(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		if f.room == "" {
			continue
		}
		allowed, known := rooms[f.room]
		if !known {
			t.Errorf("%s: %q is no room of the house; add it to ARCHITECTURE.md and to rooms", f.path, f.room)
			continue
		}
		for _, spec := range f.ast.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			checkHome(t, f, imported)
			rest, ours := strings.CutPrefix(imported, "iop/")
			target, _, _ := strings.Cut(rest, "/")
			switch {
			case !ours || target == f.room || slices.Contains(allowed, target):
			case f.test && floorOf(target) <= floorOf(f.room):
			default:
				t.Errorf("%s imports %s: %s may import %q only", f.path, imported, f.room, allowed)
			}
		}
	}
}

func checkHome(t *testing.T, f goFile, imported string) {
	t.Helper()
	for library, owners := range homes {
		if strings.HasPrefix(imported, library) && !f.test && !slices.Contains(owners, f.room) {
			t.Errorf("%s imports %s, which belongs in %q", f.path, imported, owners)
		}
	}
	if f.room == "execution" && !f.test && strings.Contains(imported, ".") {
		t.Errorf("%s imports %s: execution stands on the standard library alone", f.path, imported)
	}
}

// TestEveryPackageHasADoc: a room whose purpose nobody wrote down becomes a pile.
func TestEveryPackageHasADoc(t *testing.T) {
	files, _ := goFiles(t)
	docs := map[string]string{}
	for _, f := range files {
		if f.test && f.room != "" && f.room != "e2e" {
			continue
		}
		docs[f.dir()] += f.ast.Doc.Text()
	}
	for dir, doc := range docs {
		if len(strings.Fields(doc)) < 8 {
			t.Errorf("%s: the package has no comment that says what it is for", dir)
		}
	}
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	files, fset := goFiles(t)
	for _, f := range files {
		if f.test || f.room == "e2e" || ast.IsGenerated(f.ast) || f.ast.Name.Name == "main" {
			continue
		}
		for _, decl := range f.ast.Decls {
			for _, name := range undocumented(decl) {
				t.Errorf("%s: %s has no comment", fset.Position(decl.Pos()), name)
			}
		}
	}
}

// undocumented returns the exported names of a declaration that nothing explains. A comment over a group of constants
// or variables, or at the end of a line, counts.
func undocumented(decl ast.Decl) (names []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Doc.Text() == "" && d.Name.IsExported() && exportedReceiver(d) && !obvious(d) {
			names = append(names, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && d.Doc.Text() == "" && s.Doc.Text() == "" && s.Comment.Text() == "" {
					names = append(names, s.Name.Name)
				}
			case *ast.ValueSpec:
				if d.Doc.Text() == "" && s.Doc.Text() == "" && s.Comment.Text() == "" {
					names = append(names, exported(s.Names)...)
				}
			}
		}
	}
	return names
}

// obvious methods are those whose meaning the standard library defines.
func obvious(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "Unwrap", "Is", "String", "Len", "Less", "Swap"}, d.Name.Name)
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	receiver := d.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	name, ok := receiver.(*ast.Ident)
	return ok && name.IsExported()
}

func exported(idents []*ast.Ident) (names []string) {
	for _, ident := range idents {
		if ident.IsExported() {
			names = append(names, ident.Name)
		}
	}
	return names
}

// TestGeneratedCodeIsCurrent makes the generated code again, somewhere else, and compares.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	const schema, generated = "tunnel/wire/iop.proto", "tunnel/wire/iop.pb.go"
	dir := t.TempDir()
	source, err := os.ReadFile(schema)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "iop.proto"), source, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "run", "./tunnel/wire/protogen", dir).CombinedOutput(); err != nil {
		t.Fatalf("protogen: %v\n%s", err, out)
	}
	fresh, err := os.ReadFile(filepath.Join(dir, "iop.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(generated)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(fresh, committed) {
		t.Errorf("%s is not what %s makes; run: make generate", generated, schema)
	}
}

func TestTreeIsFormatted(t *testing.T) {
	files, _ := goFiles(t)
	var paths []string
	for _, f := range files {
		paths = append(paths, f.path)
	}
	out, err := exec.Command("gofmt", append([]string{"-l"}, paths...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("not formatted, run gofmt -w: %v\n%s", err, out)
	}
}

// banned are patterns that must not stand in any file. A pattern is put together from parts here so that this file
// does not hold it.
var banned = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`/(work|ro{2}t)/[a-z.]`), "a path of one machine"},
	{regexp.MustCompile(`/h{1}ome/[a-z]`), "a path of one machine"},
	{regexp.MustCompile(`\bshare{1}d/`), "a folder that no clone has"},
	{regexp.MustCompile(`\bTO{1}DO\b|\bFI{1}XME\b|\bXX{2}\b`), "unfinished work: finish it, or say in words what is missing"},
	{regexp.MustCompile(`"resolve{1}d": `), "a lock file that names a registry's host"},
	{regexp.MustCompile(`registry\.npmj{1}s|files\.pythonhoste{1}d|pypi\.or{1}g|proxy\.golan{1}g`), "a registry's host"},
}

func TestNothingOfOneMachine(t *testing.T) {
	walk(t, func(p string) {
		if p == "go.sum" {
			return
		}
		data, err := os.ReadFile(p)
		if err != nil {
			t.Error(err)
			return
		}
		if bytes.IndexByte(data, 0) >= 0 {
			return // not text
		}
		for _, b := range banned {
			if at := b.pattern.FindIndex(data); at != nil {
				line := 1 + bytes.Count(data[:at[0]], []byte("\n"))
				t.Errorf("%s:%d: %q: %s", p, line, data[at[0]:at[1]], b.why)
			}
		}
	})
}

// TestFilesStayReadable: a file that grew past what a reader holds in mind is two files.
func TestFilesStayReadable(t *testing.T) {
	const maxLines, maxFuncLines = 800, 90
	files, fset := goFiles(t)
	for _, f := range files {
		if ast.IsGenerated(f.ast) {
			continue
		}
		if n := fset.File(f.ast.Pos()).LineCount(); n > maxLines {
			t.Errorf("%s has %d lines; the limit is %d", f.path, n, maxLines)
		}
		for _, decl := range f.ast.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || f.test {
				continue
			}
			if n := fset.Position(d.End()).Line - fset.Position(d.Pos()).Line + 1; n > maxFuncLines {
				t.Errorf("%s: %s has %d lines; the limit is %d", f.path, d.Name.Name, n, maxFuncLines)
			}
		}
	}
}

// TestEachThreatHasATest: the threats of SECURITY.md have numbers, 1 to 70; each is in the name of a test, or the document
// says why there can be none.
func TestEachThreatHasATest(t *testing.T) {
	files, _ := goFiles(t)
	numbers := regexp.MustCompile(`Threat(\d\d)`)
	tested := map[string]bool{}
	for _, f := range files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && strings.HasPrefix(fn.Name.Name, "Test") {
				for _, m := range numbers.FindAllStringSubmatch(fn.Name.Name, -1) {
					tested[m[1]] = true
				}
			}
		}
	}
	doc, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, untested, ok := strings.Cut(string(doc), "Not tested here:")
	if !ok {
		t.Fatal("SECURITY.md does not say what is not tested")
	}
	for i := 1; i <= 70; i++ {
		n := fmt.Sprintf("%02d", i)
		if said := regexp.MustCompile(`\b` + n + `\b \(`).MatchString(untested); tested[n] == said {
			t.Errorf("threat %s: tested: %v, said to be not tested: %v", n, tested[n], said)
		}
	}
}
