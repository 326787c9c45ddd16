package nodeagent

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"iop/execution"
	"iop/openai"
)

// maxGathered bounds an answer that waits for its end so that its length is known when its model has another name.
// Chat answers are far below it. A longer one goes on as it comes, without a length.
const maxGathered = 256 << 10

// unaryBody is the state of an answer that is no stream.
type unaryBody struct {
	length  int64  // of the body as it will be sent, -1 if unknown
	observe bool   // it may report usage
	gather  bool   // it waits for its end
	held    []byte // of it, with gather
}

// unary prepares to pass such an answer.
func (e *exchange) unary() *unaryBody {
	kind := mediaType(e.resp.Header)
	u := &e.whole
	u.length = e.resp.ContentLength
	if encoded(e.resp.Header) {
		return u
	}
	if u.observe = e.resp.StatusCode == http.StatusOK && kind == jsonType[0]; u.observe {
		e.usage = &e.observer
	}
	if name := e.req.GetAnswerModel(); name != "" && (kind == jsonType[0] || strings.HasSuffix(kind, "+json")) {
		e.renamer = openai.NewModelRenamer(openai.StreamNone, name)
		u.gather = u.length >= 0 && u.length <= maxGathered
		u.length = -1
	}
	return u
}

// pass sends a piece of the answer.
func (u *unaryBody) pass(e *exchange, p []byte) error {
	if u.observe {
		e.observer.Write(p)
	}
	if e.renamer != nil {
		p = e.renamer.Push(p)
	}
	if u.gather {
		u.held = append(u.held, p...)
		return nil
	}
	return e.write(p, false, u.length)
}

// finish sends what is left when the answer is over.
func (u *unaryBody) finish(e *exchange) error {
	if u.gather {
		u.length = int64(len(u.held))
		if err := e.write(u.held, false, u.length); err != nil {
			return err
		}
	}
	return e.sendHead(u.length) // of an answer without a body
}

// passUnary sends an answer as it comes.
func (e *exchange) passUnary(buf []byte, n int, err error) execution.Terminal {
	u := e.unary()
	for {
		if n > 0 {
			e.arrived(true)
			if werr := u.pass(e, e.scrubbed(buf[:n])); werr != nil {
				return e.writeFailed(werr)
			}
		}
		if err != nil {
			break
		}
		n, err = e.read(buf)
	}
	if !errors.Is(err, io.EOF) {
		return e.broken(err)
	}
	if e.scrub != nil {
		if werr := u.pass(e, e.scrub.finish()); werr != nil {
			return e.writeFailed(werr)
		}
	}
	if werr := u.finish(e); werr != nil {
		return e.writeFailed(werr)
	}
	return e.completed()
}
