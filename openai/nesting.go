package openai

// Nesting follows how far a JSON object or array has come that arrives in pieces. It looks at brackets and strings only, and
// does not say whether the text is JSON. The zero value is ready.
type Nesting struct {
	depth           int
	inside, escaped bool // a string, an escape in it
	whole           bool
}

// Add takes the next piece.
func (n *Nesting) Add(piece string) {
	for i := range len(piece) {
		switch b := piece[i]; {
		case n.escaped:
			n.escaped = false
		case n.inside:
			n.inside, n.escaped = b != '"', b == '\\'
		case b == '"':
			n.inside = true
		case b == '{' || b == '[':
			n.depth++
		case b == '}' || b == ']':
			n.depth--
			n.whole = n.whole || n.depth == 0
		}
	}
}

// Whole reports whether the brackets that were opened are closed: nothing can follow but white space.
func (n *Nesting) Whole() bool { return n.whole }
