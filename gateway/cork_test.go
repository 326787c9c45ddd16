package gateway_test

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

// Streams of every size, ended by what was held back, on one connection after the other's end.
func TestStreamsOfEverySizeOnOneConnection(t *testing.T) {
	e := newEdge(t, nil)
	sizes := []int{1, 100, 2000, 2047, 2048, 4000, 4095, 4096, 4097, 9000, 60_000, 200_000}
	for i, size := range sizes {
		e.addNode(fmt.Sprint("n", i), 1, answerSSE(chunk(strings.Repeat("x", size)), doneEvent), fmt.Sprint("m", i))
	}
	for range 3 {
		for i, size := range sizes {
			status, _, body := e.post(chat, fmt.Sprintf(`{"model":"m%d","stream":true}`, i))
			if want := chunk(strings.Repeat("x", size)) + doneEvent; status != 200 || body != want {
				t.Errorf("size %d: %d, %d bytes", size, status, len(body))
			}
		}
	}
	e.idle()
}

// HTTP/1.0 has no chunks: the stream ends with the connection.
func TestHTTP10Stream(t *testing.T) {
	e := newEdge(t, nil)
	want := chunk(strings.Repeat("x", 5000)) + doneEvent
	e.addNode("n1", 1, answerSSE(chunk(strings.Repeat("x", 5000)), doneEvent), "m")
	conn, err := net.Dial("tcp", e.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	const body = `{"model":"m","stream":true}`
	fmt.Fprintf(conn, "POST %s HTTP/1.0\r\nHost: edge\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chat, e.key, len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	e.idle()
}
