package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"iop/openai"
)

const (
	// Each bodyWindow must bring bodyStep bytes of a body. While others wait for room it must bring the bodyWindows-th part
	// of what is kept for it, too: a client that only announces a body must not keep others out. Nobody else suffers from a
	// slow link, so without others in line it may take its time.
	bodyWindow  = 30 * time.Second
	bodyWindows = 16
	bodyStep    = 32 << 10
	// budgetWait is what a client is told to wait when too many bodies are in memory.
	budgetWait = 5 * time.Second
)

// growth is how the buffer of a body grows whose length was not declared; Config.MaxBodyBytes is the last step. Each
// step copies what there is; most of what comes without a length is small.
var growth = [...]int64{firstBuffer, 1 << 20}

// errTooSlow says that a body comes too slowly for the room that it takes from others.
var errTooSlow = errors.New("the request body arrives too slowly")

// errNoRoom says that the budget had no room for a body in time.
var errNoRoom = errors.New("no memory for the request body")

// readBody reads the whole body, within the limits of one request and of all together. held is what it took of the
// budget, for the caller to give back when the body is no longer needed, also after an error.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, share *keyShare) (body []byte, held int64, e *openai.Error) {
	switch {
	case len(r.Header["Content-Encoding"]) > 0:
		return nil, 0, openai.UnsupportedMediaType("an uncompressed body")
	case r.ContentLength > s.cfg.MaxBodyBytes:
		return nil, 0, openai.RequestTooLarge(s.cfg.MaxBodyBytes)
	case r.ContentLength == 0:
		return nil, 0, nil
	}
	rc := http.NewResponseController(w)
	in := slowReader{from: r.Body, rc: rc, contested: s.bodies.contested}
	var err error
	if r.ContentLength > 0 {
		body, held, err = s.readWhole(r.Context(), &in, r.ContentLength, share)
	} else {
		body, held, err = s.readGrowing(r.Context(), &in, share)
	}
	_ = rc.SetReadDeadline(time.Time{})
	if err == nil {
		return body, held, nil
	}
	if errors.Is(err, errNoRoom) {
		return nil, held, openai.Overloaded(budgetWait)
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return nil, held, e
	}
	return nil, held, openai.InvalidRequest("", "The request body ended early or arrived too slowly. At least 32 KiB must arrive every 30 seconds, and a sixteenth of its length while others wait.")
}

// readWhole reads a body of a declared length into a buffer of that size, once there is room for it.
func (s *Server) readWhole(ctx context.Context, in *slowReader, length int64, share *keyShare) (body []byte, held int64, err error) {
	if !s.bodies.acquire(ctx, share, length, 0) {
		return nil, 0, errNoRoom
	}
	in.room = length
	body = s.bodies.buffer(length)
	if _, err = io.ReadFull(in, body); err != nil {
		return nil, length, err
	}
	// net/http watches for the client's going away only after it has seen the end of the body.
	var one [1]byte
	_, _ = in.Read(one[:])
	return body, length, nil
}

// readGrowing reads a body of unknown length into a buffer that grows by the steps of growth.
func (s *Server) readGrowing(ctx context.Context, in *slowReader, share *keyShare) (body []byte, held int64, err error) {
	for {
		size := s.nextSize(held)
		if size == held {
			return s.atMost(in, body, held)
		}
		in.rest()
		if !s.bodies.acquire(ctx, share, size-held, held) {
			return nil, held, errNoRoom
		}
		held, in.room = size, size
		grown := s.bodies.buffer(size)
		n, err := io.ReadFull(in, grown[copy(grown, body):])
		body = grown[:len(body)+n]
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF && in.ended:
			return s.fitted(body, held, share)
		case err != nil:
			return nil, held, err
		}
	}
}

// atMost ends a body that has as many bytes as one may have.
func (s *Server) atMost(in *slowReader, body []byte, held int64) ([]byte, int64, error) {
	var one [1]byte
	if _, err := io.ReadFull(in, one[:]); err == nil {
		return nil, held, openai.RequestTooLarge(s.cfg.MaxBodyBytes)
	} else if err != io.EOF {
		return nil, held, err
	}
	return body, held, nil
}

// nextSize is how large the buffer of a body of unknown length becomes that has filled one of that size: the same if it
// can't grow any more.
func (s *Server) nextSize(size int64) int64 {
	for _, next := range growth {
		if next > size && next <= s.cfg.MaxBodyBytes {
			return next
		}
	}
	return s.cfg.MaxBodyBytes
}

// fitted moves a body that is much smaller than its buffer into one of its size, if there is room beside it.
func (s *Server) fitted(body []byte, held int64, share *keyShare) ([]byte, int64, error) {
	n := int64(len(body))
	if held <= firstBuffer || n > held/2 || !s.bodies.acquireNow(share, n) {
		return body, held, nil
	}
	small := s.bodies.buffer(n)
	copy(small, body)
	s.bodies.give(share, held)
	return small, n, nil
}

// slowReader reads a body that has to keep coming; see bodyWindow.
type slowReader struct {
	from      io.Reader
	rc        *http.ResponseController
	contested func() bool // others wait for room
	room      int64       // bytes that are kept for the body

	set   time.Time // when the present window began
	got   int       // bytes since then
	began time.Time // when the body began to come, or went on to
	total int64     // bytes since then
	ended bool      // the body's own end was read
}

// rest stops the clocks while nothing is read.
func (s *slowReader) rest() {
	if !s.set.IsZero() {
		s.set, s.began, s.total = time.Time{}, time.Time{}, 0
		_ = s.rc.SetReadDeadline(s.set)
	}
}

// Read implements io.Reader. A window that brings too little ends with the connection's own timeout.
func (s *slowReader) Read(p []byte) (int, error) {
	if s.set.IsZero() || s.got >= bodyStep {
		s.set, s.got = time.Now(), 0
		_ = s.rc.SetReadDeadline(s.set.Add(bodyWindow)) // every writer of net/http's can
		if s.began.IsZero() {
			s.began = s.set
		}
	}
	n, err := s.from.Read(p)
	s.got += n
	s.total += int64(n)
	s.ended = err == io.EOF
	if err == nil && s.contested() && s.late(time.Now()) {
		err = errTooSlow
	}
	return n, err
}

// late reports whether less has come than others may expect. The first window is free.
func (s *slowReader) late(now time.Time) bool {
	windows := float64(now.Sub(s.began)) / float64(bodyWindow)
	return windows > 1 && float64(s.total) < windows*float64(s.room)/bodyWindows
}
