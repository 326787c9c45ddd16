package sim

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of an answer that nobody gave a length.
const (
	defaultTokens  = 16
	echoBytes      = 4 << 10 // of the prompt
	reasonTokens   = 4       // of a model that thinks aloud
	schemaPiece    = 8       // bytes of a JSON document a token
	maxCountPieces = 1 << 30
)

// script is the text of one answer, a token at a time. The same request gives the same script.
type script struct {
	echo  []string // the prompt's words come first
	fixed string   // the whole text, where it is not made of tokens; else ""
	total int
	chunk int // pad to that many bytes
	style string
	cut   bool // the client's limit made it shorter
}

// scriptFor writes the script of a.
func (x *exchange) scriptFor(a *ask) script {
	s := script{chunk: x.k.chunkBytes, style: x.k.text}
	switch {
	case x.k.echoHeaders:
		s.fixed = x.headerText()
	case x.k.leak:
		s.fixed = "The credentials were " + x.credentials()
	case a.schema != nil:
		s.fixed = exampleOf(a.schema)
	case a.jsonObject:
		s.fixed = `{"answer":"` + strconv.Itoa(a.input) + `"}`
	default:
		s.echo = strings.Fields(clip(a.text, echoBytes))
	}
	if s.fixed != "" {
		s.total = (len(s.fixed) + s.pieceBytes() - 1) / s.pieceBytes()
	} else {
		s.total = max(defaultTokens, len(s.echo)+1)
		if x.k.tokens != unset {
			s.total = x.k.tokens
		}
	}
	if a.limit != unset && s.total > a.limit {
		s.total, s.cut = a.limit, true
	}
	return s
}

// clip returns at most n bytes of s and never half a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func (s *script) pieceBytes() int {
	if s.chunk > 0 {
		return s.chunk
	}
	return schemaPiece
}

var (
	cjkPieces   = []string{"你好", "世界", "推論", "こんにちは", "모델", "流れる", "，"}
	emojiPieces = []string{"😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "🧪"}
	mixPieces   = []string{" plain", " 你好", " 😀", " naïve", " \u2028", " \"quoted\"", " back\\slash", " 👩‍👩‍👧‍👦"}
)

// appendPiece appends the text of token i.
func (s *script) appendPiece(b []byte, i int) []byte {
	if s.fixed != "" {
		return append(b, s.slice(i)...)
	}
	from := len(b)
	if i < len(s.echo) {
		if i > 0 {
			b = append(b, ' ')
		}
		return s.pad(append(b, s.echo[i]...), from)
	}
	switch s.style {
	case "cjk":
		b = append(b, cjkPieces[i%len(cjkPieces)]...)
	case "emoji":
		b = append(b, emojiPieces[i%len(emojiPieces)]...)
	case "mix":
		b = append(b, mixPieces[i%len(mixPieces)]...)
	case "stamp":
		b = strconv.AppendInt(append(b, ' '), time.Now().UnixNano(), 10)
	default:
		b = strconv.AppendInt(append(b, " t"...), int64(i), 10)
	}
	return s.pad(b, from)
}

// slice is token i of a fixed text; tokens end at characters' borders.
func (s *script) slice(i int) string {
	n := s.pieceBytes()
	from, to := len(clip(s.fixed, i*n)), len(clip(s.fixed, (i+1)*n))
	return s.fixed[from:to]
}

func (s *script) pad(b []byte, from int) []byte {
	for len(b)-from < s.chunk {
		switch s.style {
		case "cjk":
			b = append(b, "字"...)
		case "emoji":
			b = append(b, "🧪"...)
		default:
			b = append(b, 'x')
		}
	}
	return b
}

// whole is the text in one piece.
func (s *script) whole() string {
	var b []byte
	for i := range s.total {
		b = s.appendPiece(b, i)
	}
	return string(b)
}
