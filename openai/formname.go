package openai

import (
	"fmt"
	"strings"
)

// formName is what is known of the parts that have a name, or an element of it: image[] is one of image.
type formName struct {
	base    string // as the client wrote it
	indexed bool   // it has brackets
	at      int    // the first part, by its place in Form.parts
	whole   map[string]bool
}

// foldName is the one form of names that some readers take for the same: they ignore case, and put an underscore in the
// place of a dot or hyphen.
func foldName(name string) string {
	return strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToLower(name))
}

// routes reports whether a field decides something at the Edge, whatever the route.
func routes(name string) bool { return name == "model" || name == "stream" }

// name checks a part's name against those before it, and notes it.
//
// A field may stand there once, in one spelling, and either as a value or as a list. Only what is a list by its name
// (image[]) may be repeated, and files may: readers differ in which of two values counts.
func (f *Form) name(part *formPart) (fault string) {
	base, indices := cutIndices(part.name)
	folded := foldName(base)
	switch {
	case routes(folded) && (part.name != folded || part.file):
		return folded + " must be a plain field, spelled exactly like this"
	case folded == "_charset_": // RFC 7578, section 4.6
		return "the form must be UTF-8 and can't declare another charset"
	}
	n := f.names[folded]
	if n == nil {
		n = &formName{base: base, indexed: indices != "", at: len(f.parts), whole: map[string]bool{}}
		f.names[folded] = n
	}
	filesOnly, repeated := n.whole[part.name]
	switch {
	case n.base != base:
		return fmt.Sprintf("%s is another spelling of %s", base, n.base)
	case n.indexed != (indices != ""):
		return base + " is given both with and without brackets"
	case repeated && !(filesOnly && part.file) && !strings.HasSuffix(indices, "[]"):
		return part.name + " appears more than once"
	}
	n.whole[part.name] = part.file && (!repeated || filesOnly)
	return ""
}
