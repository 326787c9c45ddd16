package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// LogHandler is a slog.Handler that writes JSON lines as slog.JSONHandler does, for half of the cost: the line of a
// request is by far what an Edge writes most. Group names, levels and times are as there; there are no options.
type LogHandler struct {
	out   io.Writer // one Write per line; must be safe for concurrent use
	level slog.Leveler
	start []byte // encoded attributes of WithAttrs, each with a comma before it, and open groups
	depth int    // groups open in start
	empty bool   // nothing stands in the innermost group yet
}

// NewLogHandler returns a LogHandler. out gets whole lines, from any goroutine: a LogWriter, usually.
func NewLogHandler(out io.Writer, level slog.Leveler) *LogHandler {
	return &LogHandler{out: out, level: level}
}

// Enabled implements slog.Handler.
func (h *LogHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

var linePool = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// Handle implements slog.Handler.
func (h *LogHandler) Handle(_ context.Context, r slog.Record) error {
	buf := linePool.Get().(*[]byte)
	b := append((*buf)[:0], '{')
	if !r.Time.IsZero() {
		b = append(b, `"time":"`...)
		b = r.Time.AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
		b = append(b, `",`...)
	}
	b = append(b, `"level":"`...)
	b = append(b, r.Level.String()...)
	b = append(b, `","msg":`...)
	b = appendLogString(b, r.Message)
	b = append(b, h.start...)
	first := h.empty
	r.Attrs(func(a slog.Attr) bool {
		b, first = appendAttr(b, a, first)
		return true
	})
	for range h.depth {
		b = append(b, '}')
	}
	b = append(b, '}', '\n')
	_, err := h.out.Write(b)
	if cap(b) <= 16<<10 {
		*buf = b
		linePool.Put(buf)
	}
	return err
}

// WithAttrs implements slog.Handler.
func (h *LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	n.start = append([]byte(nil), h.start...)
	for _, a := range attrs {
		n.start, n.empty = appendAttr(n.start, a, n.empty)
	}
	return &n
}

// WithGroup implements slog.Handler.
func (h *LogHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	n := *h
	n.start = append([]byte(nil), h.start...)
	if !h.empty {
		n.start = append(n.start, ',')
	}
	n.start = append(appendLogString(n.start, name), ':', '{')
	n.depth++
	n.empty = true
	return &n
}

// appendAttr appends one attribute; first: nothing stands in its group yet.
func appendAttr(b []byte, a slog.Attr, first bool) ([]byte, bool) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		return appendGroup(b, a.Key, v.Group(), first)
	}
	if a.Key == "" && v.Any() == nil {
		return b, first // slog: an empty Attr is ignored
	}
	if !first {
		b = append(b, ',')
	}
	b = append(appendLogString(b, a.Key), ':')
	return appendLogValue(b, v), false
}

func appendGroup(b []byte, key string, attrs []slog.Attr, first bool) ([]byte, bool) {
	if len(attrs) == 0 {
		return b, first
	}
	inline := key == ""
	inner := first
	if !inline {
		if !first {
			b = append(b, ',')
		}
		b = append(appendLogString(b, key), ':', '{')
		inner = true
	}
	for _, a := range attrs {
		b, inner = appendAttr(b, a, inner)
	}
	if inline {
		return b, inner
	}
	return append(b, '}'), false
}

func appendLogValue(b []byte, v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindString:
		return appendLogString(b, v.String())
	case slog.KindInt64:
		return strconv.AppendInt(b, v.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(b, v.Uint64(), 10)
	case slog.KindFloat64:
		f := v.Float64()
		if f-f != 0 { // NaN and infinities are no JSON numbers
			return appendLogString(b, strconv.FormatFloat(f, 'g', -1, 64))
		}
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	case slog.KindBool:
		return strconv.AppendBool(b, v.Bool())
	case slog.KindDuration:
		return strconv.AppendInt(b, int64(v.Duration()), 10)
	case slog.KindTime:
		return append(v.Time().AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
	}
	return appendLogAny(b, v.Any())
}

func appendLogAny(b []byte, v any) []byte {
	switch v := v.(type) {
	case json.Marshaler: // its own word before its error text, as in slog
	case error:
		return appendLogString(b, v.Error())
	}
	data, err := json.Marshal(v)
	if err != nil {
		return appendLogString(b, fmt.Sprintf("!ERROR:%v", err))
	}
	return append(b, data...)
}

// appendLogString appends s as a JSON string. What is not plain ASCII goes through encoding/json.
func appendLogString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			data, err := json.Marshal(s)
			if err != nil { // strings always encode
				return append(b, `""`...)
			}
			return append(b, data...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
