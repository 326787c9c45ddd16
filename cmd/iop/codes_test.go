package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"iop/execution"
	"iop/gateway/credential"
	"iop/identity"
	"iop/lease"
)

// TestEachCodeIsExplained: docs/troubleshooting.md explains every code that the product can emit, and no other. The codes
// come from the code itself.
func TestEachCodeIsExplained(t *testing.T) {
	public, admin, tunnel := emittedCodes(t)
	text := readText(t, "../../docs/troubleshooting.md")
	for section, codes := range map[string]map[string]bool{
		"## What a client sees": public, "## Runs": runCodes(), "## Nodes: refusals and ends of sessions": tunnel,
		"## The admin API and the commands": admin, "### The Edge issued none": namesOf(credential.Reasons()),
		"### The Node refused it": namesOf(lease.Reasons()), "### A certificate was refused": namesOf(identity.Reasons()),
	} {
		if len(codes) < 10 {
			t.Fatalf("%s: only %q were found", section, slices.Sorted(maps.Keys(codes)))
		}
		explained := explainedCodes(t, "docs/troubleshooting.md", text, section)
		for code := range codes {
			if !explained[code] {
				t.Errorf("docs/troubleshooting.md, %s: `%s` has no line", section, code)
			}
		}
		for code := range explained {
			if !codes[code] {
				t.Errorf("docs/troubleshooting.md, %s: `%s` is never emitted", section, code)
			}
		}
	}
}

// TestClientsKnowEachCodeAndHeader: docs/api.md says what a client should do about every code, and what every header means that the
// Edge reads or sends of its own.
func TestClientsKnowEachCodeAndHeader(t *testing.T) {
	text := readText(t, "../../docs/api.md")
	public, _, _ := emittedCodes(t)
	told := explainedCodes(t, "docs/api.md", text, "## Errors")
	for code := range public {
		if !told[code] {
			t.Errorf("docs/api.md: `%s` has no line", code)
		}
	}
	for code := range told {
		if !public[code] {
			t.Errorf("docs/api.md: `%s` is never emitted", code)
		}
	}
	_, section, _ := strings.Cut(text, "\n## Headers\n")
	section, _, _ = strings.Cut(strings.ToLower(section), "\n## ")
	headers := ownHeaders(t)
	if len(headers) < 16 {
		t.Fatalf("only %q were found", slices.Sorted(maps.Keys(headers)))
	}
	for header := range headers {
		if !strings.Contains(section, "`"+strings.ToLower(header)+"`") {
			t.Errorf("docs/api.md: %s has no line", header)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`.*?) \\|").FindAllStringSubmatch(section, -1) {
		for _, named := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if !headers[http.CanonicalHeaderKey(named[1])] {
				t.Errorf("docs/api.md: nothing reads or sends %s", named[1])
			}
		}
	}
}

// ownHeaders are the headers that the public API's sources name and that are not those of everybody, in canonical form.
func ownHeaders(t *testing.T) map[string]bool {
	t.Helper()
	own := regexp.MustCompile(`"((?:X-(?:Iop|Ratelimit|Session|Request|Client-Request|Should)-[A-Za-z-]+[a-z])|Request-Id|Retry-After|Openai-Processing-Ms)"`)
	headers := map[string]bool{}
	for _, dir := range []string{"openai", "gateway", "gateway/limit"} {
		files, err := filepath.Glob("../../" + dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, found := range own.FindAllStringSubmatch(readText(t, file), -1) {
				headers[found[1]] = true
			}
		}
	}
	return headers
}

func runCodes() map[string]bool {
	codes := map[string]bool{}
	for c := execution.CodeNone + 1; !strings.HasPrefix(c.String(), "unknown_") || c == execution.CodeUnknownProvider; c++ {
		codes[c.String()] = true
	}
	return codes
}

func namesOf[R interface{ String() string }](reasons []R) map[string]bool {
	names := map[string]bool{}
	for _, r := range reasons {
		names[r.String()] = true
	}
	return names
}

// explainedCodes are those in the first column of a section's table.
func explainedCodes(t *testing.T, file, text, section string) map[string]bool {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n"+section+"\n")
	if !ok {
		t.Fatalf("%s has no %q", file, section)
	}
	rest, _, _ = strings.Cut(rest, "\n#")
	codes := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(rest, -1) {
		for _, code := range strings.Split(row[1], ", ") {
			codes[strings.Trim(code, "`")] = true
		}
	}
	return codes
}

// emittedCodes are the codes that stand in the sources, by whom they are told: clients, operators, Nodes.
func emittedCodes(t *testing.T) (public, admin, tunnel map[string]bool) {
	t.Helper()
	public, admin, tunnel = map[string]bool{}, map[string]bool{}, map[string]bool{}
	into := map[string]map[string]bool{
		"openai": public, "gateway": public, "gateway/admin": admin, "web": admin, "gateway/registry": tunnel, "tunnel": tunnel,
	}
	for dir, codes := range into {
		files, err := filepath.Glob("../../" + dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			target := codes
			if dir == "gateway" && filepath.Base(file) == "command.go" {
				target = admin // an operator's commands to Nodes
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				for _, code := range codesOf(n) {
					target[code] = true
				}
				return true
			})
		}
	}
	return public, admin, tunnel
}

// codesOf returns the codes that one node of a source names.
func codesOf(n ast.Node) []string {
	switch n := n.(type) {
	case *ast.KeyValueExpr: // Code: "x"
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Code" {
			return literals(n.Value)
		}
	case *ast.AssignStmt: // e.Code = "x"
		for i, left := range n.Lhs {
			if s, ok := left.(*ast.SelectorExpr); ok && s.Sel.Name == "Code" && len(n.Lhs) == len(n.Rhs) {
				return literals(n.Rhs[i])
			}
		}
	case *ast.CallExpr: // refusal(status, "x", ...), refuse("x", ...)
		name, ok := n.Fun.(*ast.Ident)
		if ok && slices.Contains([]string{"refusal", "failure", "refuse"}, name.Name) && len(n.Args) > 1 {
			return first(n.Args[:2])
		}
	case *ast.CompositeLit: // &failure{status, "x", ...}
		if name, ok := n.Type.(*ast.Ident); ok && name.Name == "failure" && len(n.Elts) > 1 {
			return first(n.Elts[:2])
		}
	case *ast.ValueSpec: // codeX = "x", goodbyeX = "x"
		if name := n.Names[0].Name; strings.HasPrefix(name, "code") || strings.HasPrefix(name, "goodbye") || name == "typeInvalidRequest" {
			return first(n.Values)
		}
	case *ast.FuncDecl:
		if n.Name.Name == "codeForStatus" {
			return returned(n)
		}
	}
	return nil
}

func returned(f *ast.FuncDecl) (codes []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		if r, ok := n.(*ast.ReturnStmt); ok {
			codes = append(codes, first(r.Results)...)
		}
		return true
	})
	return codes
}

func first(list []ast.Expr) []string {
	for _, e := range list {
		if codes := literals(e); codes != nil {
			return codes
		}
	}
	return nil
}

func literals(e ast.Expr) []string {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return nil
	}
	code, err := strconv.Unquote(literal.Value)
	if err != nil || !regexp.MustCompile(`^[a-z][a-z_]*$`).MatchString(code) {
		return nil
	}
	return []string{code}
}
