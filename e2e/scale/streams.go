package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// tally is what the load's process says of its streams, a line a second.
type tally struct {
	Streaming int64 `json:"streaming"` // have had a chunk, and go on
	Chunks    int64 `json:"chunks"`
	Failed    int64 `json:"failed"` // refused, broken or ended
}

// measureStreams holds n paced streams.
func measureStreams(ctx context.Context, o options) error {
	h, err := newHouse(ctx, o.iop)
	if err != nil {
		return err
	}
	defer h.close()
	e, err := h.startEdge(ctx)
	if err != nil {
		return err
	}
	if err := h.startProvider(ctx, e, o.n); err != nil {
		return err
	}
	base, err := e.process.resident()
	if err != nil {
		return err
	}
	load, err := h.load("load-streams", e.key, "-url", e.url, "-n", strconv.Itoa(o.n), "-gap", o.gap.String(), "-hold", (o.hold + time.Minute).String())
	if err != nil {
		return err
	}
	var before tally
	for before.Streaming < int64(o.n) {
		if err := load.line(ctx, time.Minute, &before); err != nil {
			return err
		}
		if before.Failed > 0 {
			return fmt.Errorf("%d streams failed: %s", before.Failed, load.logTail())
		}
	}
	began := time.Now()
	p, err := e.watch(ctx, o.hold)
	if err != nil {
		return err
	}
	if err := e.profile(o.profiles); err != nil {
		return err
	}
	var after tally
	for after == (tally{}) || len(load.lines) > 0 { // what it says last
		if err := load.line(ctx, time.Minute, &after); err != nil {
			return err
		}
	}
	if after.Failed > 0 || after.Streaming < int64(o.n) {
		return fmt.Errorf("%d streams are left of %d: %s", after.Streaming, o.n, load.logTail())
	}
	each := p.report("streams", o.n, base)
	rate := float64(after.Chunks-before.Chunks) / time.Since(began).Seconds()
	fmt.Printf("%-34s %8.0f a second, %.0f when all keep their pace of %s\n", "chunks that arrived", rate, float64(o.n)/o.gap.Seconds(), o.gap)
	return verdict("Edge's memory for each stream", each/1024, streamGoal/1024, "KiB")
}

// startProvider starts a simulator with room for n requests, and the Node that offers it.
func (h *house) startProvider(ctx context.Context, e *edge, n int) error {
	sim, err := h.start("sim", h.iop, nil, "sim", "--listen", "127.0.0.1:0", "--slots", strconv.Itoa(n), "--models", "sim-small", "--json")
	if err != nil {
		return err
	}
	var ready struct{ URL string }
	if err := sim.line(ctx, 20*time.Second, &ready); err != nil {
		return err
	}
	env := []string{"IOP_NODE_EDGE=" + e.tunnel(), "IOP_NODE_NAME=scale", "IOP_NODE_JOIN_TOKEN=" + e.token}
	if _, err := h.start("node", h.iop, env, "node", "--provider", fmt.Sprintf("sim:openai=%s,capacity=%d", ready.URL, n)); err != nil {
		return err
	}
	return e.gauge(ctx, "iop_nodes_online", 1, 20*time.Second)
}

// dialers is how many streams begin at once.
const dialers = 32

// loadStreams opens n streams, counts what comes, and says so each second until it is told to end.
func loadStreams(ctx context.Context, o options) error {
	host := strings.TrimPrefix(o.url, "http://")
	request := chatRequest(host, o)
	var streaming, chunks, failed atomic.Int64
	begin := make(chan struct{}, dialers)
	var wg sync.WaitGroup
	for range o.n {
		wg.Go(func() {
			begin <- struct{}{}
			begun := sync.OnceFunc(func() { <-begin })
			first := func() { begun(); streaming.Add(1) }
			err := stream(ctx, host, request, first, &chunks)
			begun()
			if ctx.Err() == nil {
				streaming.Add(-1)
				failed.Add(1)
				fmt.Fprintln(os.Stderr, "a stream ended:", err)
			}
		})
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			line, err := json.Marshal(tally{streaming.Load(), chunks.Load(), failed.Load()})
			if err != nil {
				return err
			}
			fmt.Println(string(line))
		case <-ctx.Done():
		}
	}
	wg.Wait()
	return nil
}

// stream makes one request and counts its chunks until it ends, which is a fault.
func stream(ctx context.Context, host string, request []byte, first func(), chunks *atomic.Int64) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(request); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for seen := false; ; {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		if !seen && !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 200 ")) {
			return errors.New(string(buf[:n]))
		}
		if events := bytes.Count(buf[:n], []byte("data: ")); events > 0 {
			if !seen {
				seen = true
				first()
			}
			chunks.Add(int64(events))
		} else if bytes.HasSuffix(buf[:n], []byte("\r\n0\r\n\r\n")) {
			return errors.New("the stream is over")
		}
	}
}

// chatRequest is a request as an SDK sends it, with a prompt of 2 KiB.
func chatRequest(host string, o options) []byte {
	body, err := json.Marshal(map[string]any{
		"model": "sim-small", "stream": true, "max_tokens": 1 << 20,
		"user":     fmt.Sprintf("sim:itl=%s,tokens=%d", o.gap, int(o.hold/o.gap)+1000),
		"messages": []map[string]string{{"role": "user", "content": strings.Repeat("memory ", 300)}},
	})
	if err != nil {
		panic(err) // strings and numbers
	}
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 2.8.0\r\n"+
		"X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.8.0\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\n"+
		"X-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.12.3\r\nX-Stainless-Async: false\r\n"+
		"X-Stainless-Retry-Count: 0\r\nX-Stainless-Read-Timeout: 600\r\nAccept-Encoding: gzip, deflate\r\n"+
		"Content-Length: %d\r\n\r\n%s", host, o.secret, len(body), body)
}
