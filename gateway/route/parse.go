package route

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"iop/filewatch"
)

// MaxFileSize is the largest file that is read, in bytes. A thousand routes are a tenth of it.
const MaxFileSize = 1 << 20

// maxNesting is how deep lists and maps may lie in one another. The routes themselves need eight; what is left is for
// defaults that are JSON schemas.
const maxNesting = 32

// Option says something of the Edge that a file is for.
type Option func(*reader)

// Managed says whether the Edge is in managed mode, where targets may name credential slots. Without it, or with false,
// a file that names one is at fault: no request is ever sent without the credential that its route asks for.
func Managed(on bool) Option { return func(r *reader) { r.managed = on } }

// Load reads a file and makes a Table of it. The error is a *ConfigError where the content is at fault, else of the
// file system.
func Load(path string, options ...Option) (*Table, error) {
	file := fileAt(path)
	data, err := file.Read()
	if err != nil {
		return nil, err
	}
	return Parse(path, data, options...)
}

func fileAt(path string) filewatch.File { return filewatch.File{Path: path, Max: MaxFileSize} }

// Parse makes a Table of an iop.yaml's content; file is its name in errors. An empty one, one of comments alone, or one
// without the member routes is refused: an editor, a full disk or a mistake has emptied it, and to take it would open
// every model to everyone. Any error is a *ConfigError with all faults that were found.
func Parse(file string, data []byte, options ...Option) (*Table, error) {
	r := &reader{faults: faultList{file: file}}
	for _, option := range options {
		option(r)
	}
	var t *Table
	if root := r.document(data); root != nil {
		t = r.table(root)
	}
	if err := r.faults.err(); err != nil {
		return nil, err
	}
	t.digest = digest(data)
	return t, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

// document returns the root of the one document, nil if it is at fault.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > MaxFileSize {
		r.faults.add(0, 0, "", fmt.Sprintf("the file is larger than %d bytes", MaxFileSize))
		return nil
	}
	if at, bad := unreadable(data); bad {
		before := data[:at]
		line := 1 + bytes.Count(before, []byte("\n"))
		r.faults.add(line, 1+utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):]), "", "this byte is not printable UTF-8; the file must be text")
		return nil
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	switch err := d.Decode(&first); {
	case errors.Is(err, io.EOF):
		r.faults.add(1, 1, "", emptyFile)
		return nil
	case err != nil:
		r.noYAML(err)
		return nil
	}
	switch err := d.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.noYAML(err)
		return nil
	default:
		r.fault(&second, "", "a second document begins here; the file must hold a single one, without another ---")
		return nil
	}
	root := first.Content[0]
	if r.shape(root, 1); r.faults.total > 0 {
		return nil
	}
	if isNull(root) {
		r.faults.add(1, 1, "", emptyFile)
		return nil
	}
	return root
}

const emptyFile = "the file holds no routes; write \"routes: []\" if that is intended"

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// noYAML notes what the library says about text that is no YAML. It knows no column, and the line is where it stopped or
// where what it was reading begins.
func (r *reader) noYAML(err error) {
	message, line := strings.TrimPrefix(err.Error(), "yaml: "), 1 // it does not say so of the first line
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1]) // its own digits
		message = message[len(m[0]):]
	}
	r.faults.add(line, 0, "", "this is not valid YAML, here or in the next lines: "+message)
}

// unreadable finds the first byte that may not stand in YAML. The library would refuse it too, but without a place.
func unreadable(data []byte) (at int, bad bool) {
	for at < len(data) {
		c, width := utf8.DecodeRune(data[at:])
		switch {
		case c == utf8.RuneError && width == 1, c == 0xfffe, c == 0xffff:
			return at, true
		case unicode.IsControl(c) && c != '\t' && c != '\n' && c != '\r' && c != 0x85:
			return at, true
		}
		at += width
	}
	return 0, false
}

// shape refuses what of YAML is not read here: aliases can make a small file a huge one, and a tag or an anchor that
// means nothing would be one that its writer takes for something.
func (r *reader) shape(n *yaml.Node, depth int) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.fault(n, "", "aliases (*%s) are not supported; write out the value", n.Value)
		return
	case n.Anchor != "":
		r.fault(n, "", "anchors (&%s) are not supported; remove it", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.fault(n, "", "tags (%s) are not supported; remove it", n.Tag)
	}
	if depth > maxNesting {
		r.fault(n, "", "this is nested more than %d levels deep", maxNesting)
		return
	}
	for _, child := range n.Content {
		r.shape(child, depth+1)
	}
}
