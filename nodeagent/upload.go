package nodeagent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
)

// smallBody is what the tunnel's guaranteed window brings without anybody reading: such a body is awaited whole, so
// that it leaves together with the request's head.
const smallBody = 64 << 10

// noHeader is a header field that is not sent.
var noHeader = []string{}

var errDetached = errors.New("the run has ended")

// upload is a request body on its way from the tunnel to the provider. The transport reads it on a goroutine of its
// own and may still do so when RoundTrip has returned; detach makes sure that the run is not touched any more.
type upload struct {
	run  run
	left int64

	mu       sync.Mutex // held while run.Read is running
	detached bool       // guarded by mu
}

func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.detached {
		return 0, errDetached
	}
	n, err := u.run.Read(p)
	if u.left -= int64(n); u.left < 0 {
		return n, errors.New("the request's body is longer than announced")
	}
	return n, err
}

// Close implements io.Closer; the run's body needs none.
func (u *upload) Close() error { return nil }

// detach returns once no Read is running and none will. A Read that waits for bytes ends with the run.
func (u *upload) detach() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.detached = true
}

// attachBody gives the request its body: in one piece where it has arrived or soon will, else as it arrives. With a
// lease it is always in one piece, which is returned; so is the input of a normalized run, of which the request's body was made.
func (e *exchange) attachBody(req *http.Request, length int64) (body []byte, err error) {
	if e.norm != nil {
		body := e.norm.request.Body
		req.ContentLength = int64(len(body))
		return e.norm.input, attachWhole(req, body, req.ContentLength, e.loan == nil)
	}
	req.ContentLength = length
	if e.loan != nil {
		if body, err = e.wholeBody(length); err != nil {
			return nil, err
		}
		return body, attachWhole(req, body, length, false)
	}
	body, whole := e.run.Body()
	if !whole && length <= smallBody {
		if body, err = readBody(e.run, length); err != nil {
			return nil, err
		}
		whole = true
	}
	if !whole {
		e.upload = &upload{run: e.run, left: length}
		req.Body = e.upload
		return nil, nil
	}
	return body, attachWhole(req, body, length, true)
}

// readStep is how much room is made for a body at a time: more only once so much has really come.
const readStep = 1 << 20

// readBody reads a body of a known length to its last byte.
func readBody(r io.Reader, length int64) ([]byte, error) {
	body := make([]byte, 0, min(length, readStep))
	for int64(len(body)) < length {
		if len(body) == cap(body) {
			body = slices.Grow(body, int(min(length-int64(len(body)), int64(max(len(body), readStep)))))
		}
		end := min(int64(cap(body)), length)
		n, err := io.ReadFull(r, body[len(body):end])
		body = body[:len(body)+n]
		if err != nil {
			return nil, fmt.Errorf("read the request's body: %w", err)
		}
	}
	return body, nil
}

// attachWhole gives a request a body that is there. again says that the request may reach the provider twice.
func attachWhole(req *http.Request, body []byte, length int64, again bool) error {
	if int64(len(body)) != length {
		return fmt.Errorf("the request's body has %d bytes, but %d were announced", len(body), length)
	}
	if length == 0 {
		req.Body = http.NoBody
		return nil
	}
	// NopCloser of a bytes.Reader is what net/http knows to be in memory: it sends head and body together. GetBody lets
	// it send the request on another connection where nothing of it had left; with the empty Idempotency-Key, which is
	// not sent, also where an idle connection turned out to be closed before it brought a byte of an answer. With a
	// lease it may not: perhaps the provider has seen the request, and a lease is good for one call.
	if again {
		req.Header["Idempotency-Key"] = noHeader
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return nil
}
