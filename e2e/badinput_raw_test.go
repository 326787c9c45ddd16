package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What the tests of bad input send is written to the socket byte by byte: a client library would refuse or clean most
// of it.

// rawRequest is a request as it goes over the wire.
type rawRequest struct {
	method string   // POST where empty
	target string   // as it stands in the request line
	header []string // whole lines, beside those that send writes
	auth   string   // a whole Authorization line, "-" for none; the stack's key where empty
	body   string
	length string // how the body's length is told: "" by Content-Length, "chunked", or a whole line
}

// bytes renders the request.
func (q rawRequest) bytes(s *stack) []byte {
	method, auth := q.method, q.auth
	if method == "" {
		method = "POST"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, q.target, strings.TrimPrefix(s.url, "http://"))
	switch auth {
	case "-":
	case "":
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", s.key)
	default:
		b.WriteString(auth + "\r\n")
	}
	for _, line := range q.header {
		b.WriteString(line + "\r\n")
	}
	switch q.length {
	case "":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(q.body), q.body)
	case "chunked":
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for body := q.body; body != ""; {
			n := min(len(body), 16<<10)
			fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
			body = body[n:]
		}
		b.WriteString("0\r\n\r\n")
	default:
		b.WriteString(q.length + "\r\n\r\n" + q.body)
	}
	return []byte(b.String())
}

// rawAnswer is what came back.
type rawAnswer struct {
	status int
	header http.Header
	body   string
}

// rawConn is a connection to the Edge.
type rawConn struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func (s *stack) dial(t *testing.T) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	return &rawConn{t: t, conn: conn, in: bufio.NewReader(conn)}
}

// write sends bytes; a peer that has answered and closed meanwhile is no failure.
func (c *rawConn) write(b []byte) { _, _ = c.conn.Write(b) }

// answer reads the next response; ok is false when the connection ended instead.
func (c *rawConn) answer(method string) (a rawAnswer, ok bool) {
	c.t.Helper()
	res, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		if ne, timeout := err.(net.Error); timeout && ne.Timeout() {
			c.t.Fatal("the Edge neither answered nor hung up")
		}
		return a, false
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("an answer that ends early: %v after %q", err, body)
	}
	return rawAnswer{res.StatusCode, res.Header, string(body)}, true
}

// send sends one request on a connection of its own and reads its answer.
func (q rawRequest) send(t *testing.T, s *stack) rawAnswer {
	t.Helper()
	c := s.dial(t)
	// In the background: who answers before it has read all does not read the rest.
	go c.write(q.bytes(s))
	a, ok := c.answer(q.method)
	if !ok {
		t.Fatalf("%s %s: no answer", q.method, q.target)
	}
	return a
}
