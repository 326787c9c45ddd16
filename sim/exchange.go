package sim

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a request body. Large bodies are held a few at a time, so that a test with many uploads does not need the
// memory for all of them: the others wait in the kernel, as they do before a busy engine.
const (
	maxBody     = 256 << 20
	largeBody   = 8 << 20
	largeBodies = 4
)

// exchange is one request and its answer. It belongs to the goroutine of its handler.
type exchange struct {
	s   *Server
	w   http.ResponseWriter
	rc  *http.ResponseController
	r   *http.Request
	ctx context.Context // ends with the client, or with the server under ignore_cancel
	k   knobs
	rec *Request // the ledger's: change it through s.ledger.update

	slot    bool      // a slot is held
	begun   time.Time // when its turn came, then when its first token was due; stalls move it
	cached  int       // prompt tokens that need no prefill; unset where nothing says how many
	pieces  int       // tokens generated so far
	stalled bool
	gone    bool         // a write has failed
	timer   *time.Timer  // nil before the first wait
	stop    func() bool  // of the watch on the client
	headed  bool         // the head is written
	zip     *gzip.Writer // or nil
	eol     string
	events  int    // written
	ids     int    // given
	out     []byte // the event being written; its memory is used again
	data    []byte // the JSON being built; its memory is used again
}

func (s *Server) open(w http.ResponseWriter, r *http.Request, inference bool) *exchange {
	rec := &Request{
		Method: r.Method, Path: r.RequestURI, Host: r.Host, Proto: r.Proto, Remote: r.RemoteAddr,
		Headers: r.Header.Clone(), Chunked: r.ContentLength < 0, Inference: inference, State: stateReading, Started: time.Now(),
	}
	s.ledger.open(rec)
	x := &exchange{
		s: s, w: w, rc: http.NewResponseController(w), r: r, ctx: r.Context(), rec: rec, k: s.knobsFor(r, inference), begun: rec.Started,
		cached: unset,
	}
	x.stop = context.AfterFunc(r.Context(), func() { s.ledger.gone(rec) })
	return x
}

// close books how the exchange ended and gives its slot back.
func (x *exchange) close(err error) {
	x.stop()
	if x.timer != nil {
		x.timer.Stop()
	}
	if x.zip != nil && err == nil {
		err = x.zip.Close()
	}
	state := stateFinished
	switch {
	case errors.Is(err, errRejected):
		state, err = stateRejected, nil
	case errors.Is(err, errFault):
		err = nil
	case err != nil, x.gone, x.k.ignoreCancel && x.r.Context().Err() != nil:
		state = stateCancelled
	}
	x.s.ledger.update(func() { x.rec.Tokens, x.rec.Fault = x.pieces, x.k.fault })
	x.s.ledger.close(x.rec, state, time.Now(), err)
	if x.slot {
		x.s.slots.release()
	}
}

// plain serves a path that needs no slot and reads no body.
func (s *Server) plain(serve func(*exchange) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := s.open(w, r, false)
		x.close(func() error {
			if err := x.headerKnobs(); err != nil {
				return err
			}
			x.s.ledger.setState(x.rec, stateActive)
			if err := x.authorize(); err != nil {
				return err
			}
			if err := x.preface(); err != nil {
				return err
			}
			if err := x.turn(); err != nil {
				return err
			}
			return serve(x)
		}())
	})
}

// decoder reads one endpoint's request and says how it is answered.
type decoder func(x *exchange, body []byte) (*ask, error)

// infer serves an endpoint that needs a slot.
func (s *Server) infer(d decoder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := s.open(w, r, true)
		x.close(x.infer(d))
	})
}

// aside serves an endpoint that reads a body and needs no slot.
func (s *Server) aside(d decoder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := s.open(w, r, false)
		x.close(x.infer(d))
	})
}

func (x *exchange) infer(decode decoder) error {
	if err := x.headerKnobs(); err != nil {
		return err
	}
	if err := x.authorize(); err != nil {
		return err
	}
	if x.k.lacks != "" && slices.Contains(strings.Split(x.k.lacks, "|"), x.r.URL.Path) {
		x.s.ledger.noInference(x.rec)
		return x.nowhere()
	}
	if x.k.respondEarly {
		return x.answerEarly()
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	a, err := decode(x, body)
	if err != nil {
		if !json.Valid(body) { // a Node that looks for the path
			x.s.ledger.noInference(x.rec)
		}
		return x.refuseDecode(err)
	}
	if err := x.follow(a); err != nil {
		return err
	}
	if x.k.ignoreCancel {
		x.ctx = x.s.life
	}
	if err := x.preface(); err != nil {
		return err
	}
	if a.streamOptions && x.k.usage == "refuse" {
		return x.refuse(badRequest("stream_options", "Unrecognized request argument supplied: stream_options"))
	}
	if x.k.fault == faultOverflow {
		return x.refuse(x.overflow(a))
	}
	if x.rec.Inference {
		if err := x.takeSlot(); err != nil {
			return err
		}
		x.load(a)
		x.prefill(a, body)
	}
	x.s.ledger.setState(x.rec, stateActive)
	return a.serve(x, a)
}

// follow applies the knobs that the request itself carries and looks its model up.
func (x *exchange) follow(a *ask) error {
	for _, order := range a.orders {
		if _, err := x.k.parse(order); err != nil {
			return x.refuse(badRequest("user", err.Error()))
		}
	}
	rest, err := x.k.parse(a.text)
	if err != nil {
		return x.refuse(badRequest("messages", err.Error()))
	}
	a.text = rest
	known := x.s.knows(a.model)
	x.s.ledger.update(func() { x.rec.Stream = a.stream })
	x.s.ledger.setModel(x.rec, a.model, known)
	if known || a.anyModel && a.model == "" || x.s.config.Flavour == LlamaCPP { // llama.cpp serves its one model under any name
		return nil
	}
	if a.model == "" {
		return x.refuse(badRequest("model", "you must provide a model parameter"))
	}
	return x.refuse(apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model",
		message: fmt.Sprintf("The model '%s' does not exist.", a.model),
	})
}

func (x *exchange) headerKnobs() error {
	if _, err := x.k.parse("sim:" + strings.TrimPrefix(x.r.Header.Get("X-Sim"), "sim:")); err != nil {
		return x.refuse(badRequest("X-Sim", err.Error()))
	}
	return nil
}

func (x *exchange) authorize() error {
	if x.s.config.Flavour == Ollama && !x.ollamaTrusts() {
		if err := x.whole(http.StatusForbidden, "", nil); err != nil {
			return err
		}
		return errRejected
	}
	want := x.s.config.APIKey
	if want == "" || x.r.URL.Path == "/health" {
		return nil
	}
	bearer, _ := strings.CutPrefix(x.r.Header.Get("Authorization"), "Bearer ")
	if sameKey(bearer, want) || sameKey(x.r.Header.Get("X-Api-Key"), want) {
		return nil
	}
	return x.refuse(apiError{
		status: http.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key",
		message: "Incorrect API key provided.",
	})
}

func sameKey(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// preface does the faults that strike before a slot is asked for.
func (x *exchange) preface() error {
	switch {
	case x.k.fault == faultClose:
		return x.cut(false)
	case x.k.fault == faultReset:
		return x.cut(true)
	case x.k.redirect != "":
		x.w.Header().Set("Location", x.k.redirect)
		if err := x.whole(http.StatusTemporaryRedirect, "", nil); err != nil {
			return err
		}
		return errFault
	}
	if status := x.failure(); status != 0 {
		return x.refuse(x.ordered(status))
	}
	return nil
}

func (x *exchange) takeSlot() error {
	x.s.ledger.setState(x.rec, stateQueued)
	err := x.s.slots.acquire(x.ctx)
	if errors.Is(err, errFull) {
		return x.refuse(apiError{
			status: http.StatusTooManyRequests, kind: "requests", code: "rate_limit_exceeded",
			message: "All slots are busy. Try again later.", retryAfter: "1",
		})
	}
	if err != nil {
		return err
	}
	x.slot = true
	x.begun = time.Now()
	return nil
}

// turn waits for the time to first token, or for ever where the engine hangs.
func (x *exchange) turn() error {
	if x.k.fault == faultHang {
		<-x.ctx.Done()
		x.cut(false)
		return x.ctx.Err()
	}
	ttft := x.k.ttft
	if ttft == unset {
		ttft = 0
		if x.rec.Inference {
			ttft = x.s.config.TTFT
		}
	}
	x.begun = x.begun.Add(ttft)
	return x.waitUntil(x.begun)
}

// waitUntil returns at that time, or earlier with an error when the client has gone.
func (x *exchange) waitUntil(t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return x.ctx.Err()
	}
	if x.timer == nil {
		x.timer = time.NewTimer(d)
	} else {
		x.timer.Reset(d)
	}
	select {
	case <-x.timer.C:
		return nil
	case <-x.ctx.Done():
		return x.ctx.Err()
	}
}

// readBody reads the whole body and books what came.
func (x *exchange) readBody() ([]byte, error) {
	var src io.Reader = http.MaxBytesReader(x.w, x.r.Body, maxBody)
	if x.k.slowRead > 0 {
		src = &slowReader{x: x, src: src}
	}
	var buf bytes.Buffer
	if n := x.r.ContentLength; n > 0 && n < largeBody {
		buf.Grow(int(n) + bytes.MinRead)
	}
	_, err := io.CopyN(&buf, src, largeBody)
	if err == nil {
		select {
		case x.s.large <- struct{}{}:
			defer func() { <-x.s.large }()
		case <-x.ctx.Done():
			return nil, x.ctx.Err()
		}
		if n := x.r.ContentLength; n > largeBody && n <= maxBody {
			buf.Grow(int(n) - largeBody + bytes.MinRead)
		}
		_, err = io.Copy(&buf, src)
	}
	x.book(buf.Bytes())
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, x.refuse(apiError{status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", message: "The body is too large."})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w while it sent its body: %w", errGone, err)
	}
	return buf.Bytes(), nil
}

func (x *exchange) book(body []byte) {
	sum := sha256.Sum256(body)
	prefix := string(body[:min(len(body), bodyPrefix)])
	x.s.ledger.update(func() {
		x.rec.Body, x.rec.BodyLength, x.rec.BodySHA256 = prefix, int64(len(body)), hex.EncodeToString(sum[:])
	})
}

// slowReader reads a body at the pace of the knob slow_read, twenty times a second.
type slowReader struct {
	x   *exchange
	src io.Reader
}

func (s *slowReader) Read(p []byte) (int, error) {
	const turns = 20
	if err := s.x.waitUntil(time.Now().Add(time.Second / turns)); err != nil {
		return 0, err
	}
	return s.src.Read(p[:min(len(p), max(1, s.x.k.slowRead/turns))])
}

// answerEarly answers although the body has not been read: with the ordered status, or as if it had been fine.
func (x *exchange) answerEarly() error {
	x.s.ledger.setState(x.rec, stateActive)
	if err := x.turn(); err != nil {
		return err
	}
	if status := x.failure(); status != 0 {
		return x.refuse(x.ordered(status))
	}
	return x.json(http.StatusOK, map[string]any{"object": "sim.early", "early": true})
}

// refuseDecode answers a request that could not be understood.
func (x *exchange) refuseDecode(err error) error {
	if e, ok := errors.AsType[*requestError](err); ok {
		return x.refuse(badRequest(e.param, e.message))
	}
	e := badRequest("", "The body could not be read as JSON of this endpoint: "+err.Error())
	if x.s.config.Flavour == LlamaCPP { // as it does in fact
		e.status = http.StatusInternalServerError
	}
	return x.refuse(e)
}

// requestError is a request that is well-formed and wrong.
type requestError struct{ param, message string }

func (e *requestError) Error() string { return e.param + ": " + e.message }

// json answers with v as a whole.
func (x *exchange) json(status int, v any) error {
	return x.whole(status, "application/json", marshal(v))
}

// whole writes an answer of known length.
func (x *exchange) whole(status int, contentType string, body []byte) error {
	x.writeHead(status, contentType, len(body))
	return x.write(body)
}

// writeHead writes the head with all that the knobs put into it; length is unset for a stream.
func (x *exchange) writeHead(status int, contentType string, length int) {
	if x.headed {
		return
	}
	x.headed = true
	h := x.w.Header()
	if x.k.gzip && length != 0 && strings.Contains(x.r.Header.Get("Accept-Encoding"), "gzip") {
		x.zip, length = gzip.NewWriter(x.w), unset
		h.Set("Content-Encoding", "gzip")
	}
	h["Content-Type"] = nil
	if ct := x.contentType(contentType); ct != "" {
		h.Set("Content-Type", ct)
	}
	x.flavourHeaders(h)
	if length != unset && !x.k.earlyHints { // trailers need a chunked body
		h.Set("Content-Length", strconv.Itoa(length))
	}
	for i, left := 0, x.k.hugeHeaders; left > 0; i++ {
		n := min(left, 4<<10)
		h.Set(fmt.Sprintf("X-Sim-Pad-%d", i), strings.Repeat("x", n))
		left -= n
	}
	if x.k.leak {
		h.Set("X-Sim-Leak", x.credentials())
		h.Set("Set-Cookie", "sim="+strings.ReplaceAll(x.credentials(), " ", "_"))
	}
	if x.k.earlyHints {
		h.Set("Link", "<"+x.credentials()+">; rel=preload")
		x.w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		h.Set(http.TrailerPrefix+"X-Sim-Trailer", x.credentials())
	}
	x.s.ledger.update(func() { x.rec.Status = status })
	x.w.WriteHeader(status)
}

func (x *exchange) contentType(own string) string {
	switch x.k.contentType {
	case "":
		return own
	case "none":
		return ""
	case "charset":
		return own + "; charset=utf-8"
	case "json":
		return "application/json"
	case "ndjson":
		return "application/x-ndjson"
	case "html":
		return "text/html"
	}
	return x.k.contentType
}

// credentials are the secrets that came with the request.
func (x *exchange) credentials() string {
	var all []string
	for _, name := range []string{"Authorization", "X-Api-Key", "Cookie", "Proxy-Authorization"} {
		all = append(all, x.r.Header.Values(name)...)
	}
	return strings.Join(all, " ")
}

// headerText is the request's head as text, for the knob echo_headers.
func (x *exchange) headerText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\nHost: %s\n", x.r.Method, x.r.RequestURI, x.r.Host)
	for _, name := range slices.Sorted(maps.Keys(x.r.Header)) {
		for _, v := range x.r.Header[name] {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	return b.String()
}

// write sends bytes of the body. Once the client has gone it says so, or nothing under ignore_cancel.
func (x *exchange) write(b []byte) error {
	if x.gone || len(b) == 0 {
		return nil
	}
	var w io.Writer = x.w
	if x.zip != nil {
		w = x.zip
	}
	if _, err := w.Write(b); err != nil {
		return x.lost(err)
	}
	return nil
}

// flush sends what write has gathered.
func (x *exchange) flush() error {
	if x.gone {
		return nil
	}
	if x.zip != nil {
		if err := x.zip.Flush(); err != nil {
			return x.lost(err)
		}
	}
	if err := x.rc.Flush(); err != nil {
		return x.lost(err)
	}
	return nil
}

func (x *exchange) lost(err error) error {
	x.gone = true
	if x.k.ignoreCancel {
		return nil
	}
	return fmt.Errorf("%w: %w", errGone, err)
}

// cut ends the connection where it stands, with a reset or with a plain close.
func (x *exchange) cut(reset bool) error {
	conn, _, err := x.rc.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // not HTTP/1: net/http resets the stream
	}
	if l, ok := conn.(interface{ SetLinger(int) error }); ok && reset {
		l.SetLinger(0)
	}
	conn.Close()
	return errFault
}
