package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// mixedTally is what the load's process says of its requests, a line each second.
type mixedTally struct {
	Sent    int64            `json:"sent"`
	By      map[string]int64 `json:"by"` // kind and status
	Skipped int64            `json:"skipped"`
}

// client sends requests of every kind.
type client struct {
	url, key string
	http     []*http.Client // HTTP/1.1, HTTP/2
	mu       sync.Mutex
	tally    mixedTally
	serial   atomic.Int64
}

// kind is one sort of request. weight is how often it is sent, in parts of all weights.
type kind struct {
	name   string
	weight int
	send   func(c *client, ctx context.Context, r *rand.Rand) (int, error)
}

var kinds = []kind{
	{"unary", 20, func(c *client, ctx context.Context, r *rand.Rand) (int, error) {
		return c.chat(ctx, r, "tokens=8", false)
	}},
	{"stream", 20, func(c *client, ctx context.Context, r *rand.Rand) (int, error) {
		return c.chat(ctx, r, "tokens=20,itl=20ms", true)
	}},
	{"normalized", 10, (*client).anthropic},
	{"embed", 5, (*client).embed},
	{"upload", 2, (*client).upload},
	{"large", 2, func(c *client, ctx context.Context, r *rand.Rand) (int, error) {
		return c.chat(ctx, r, "big_response=1000000", false)
	}},
	{"cancel", 5, (*client).cancel},
	{"error", 5, func(c *client, ctx context.Context, r *rand.Rand) (int, error) {
		return c.chat(ctx, r, []string{"status=500", "status=400", "status=429", "close", "midclose"}[r.IntN(5)], r.IntN(2) == 0)
	}},
	{"unknown", 5, (*client).unknown},
	{"badkey", 5, (*client).badKey},
	{"models", 3, func(c *client, ctx context.Context, r *rand.Rand) (int, error) {
		return c.do(ctx, r, http.MethodGet, "/v1/models", "", nil, c.key)
	}},
}

// loadMixed sends o.rate requests a second until it is told to end.
func loadMixed(ctx context.Context, o options) error {
	second := new(http.Protocols)
	second.SetUnencryptedHTTP2(true)
	c := &client{url: o.url, key: o.secret, tally: mixedTally{By: map[string]int64{}}, http: []*http.Client{
		{Transport: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}},
		{Transport: &http.Transport{Protocols: second, DisableCompression: true}},
	}}
	var deck []kind
	for _, k := range kinds {
		if o.has(k.name) {
			for range k.weight {
				deck = append(deck, k)
			}
		}
	}
	room := make(chan struct{}, 32)
	var wg sync.WaitGroup
	defer wg.Wait()
	tick, second1 := time.NewTicker(time.Duration(float64(time.Second)/o.rate)), time.NewTicker(time.Second)
	defer tick.Stop()
	defer second1.Stop()
	r := rand.New(rand.NewPCG(1, 2))
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-second1.C:
			c.print()
		case <-tick.C:
			if len(deck) == 0 {
				continue
			}
			k, seed := deck[r.IntN(len(deck))], r.Uint64()
			select {
			case room <- struct{}{}:
				wg.Go(func() {
					status, _ := k.send(c, ctx, rand.New(rand.NewPCG(seed, 1)))
					c.count(k.name, status)
					<-room
				})
			default:
				c.mu.Lock()
				c.tally.Skipped++
				c.mu.Unlock()
			}
		}
	}
}

func (c *client) count(name string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally.Sent++
	c.tally.By[fmt.Sprint(name, " ", status)]++
}

func (c *client) print() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if line, err := json.Marshal(c.tally); err == nil {
		fmt.Fprintln(os.Stdout, string(line))
	}
}

func drainBody(resp *http.Response) error {
	defer resp.Body.Close()
	_, err := io.Copy(io.Discard, resp.Body)
	return err
}

func (c *client) do(ctx context.Context, r *rand.Rand, method, path, kind string, body []byte, key string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := c.http[r.IntN(2)].Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, drainBody(resp)
}

func (c *client) json(ctx context.Context, r *rand.Rand, path string, v any) (int, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	return c.do(ctx, r, http.MethodPost, path, "application/json", body, c.key)
}

// words is a prompt that was never there before.
func (c *client) words(r *rand.Rand) string {
	return strings.Repeat(fmt.Sprintf("Prompt %d of the load. ", r.Int64()), 1+r.IntN(60))
}

func (c *client) chat(ctx context.Context, r *rand.Rand, knobs string, stream bool) (int, error) {
	return c.json(ctx, r, "/v1/chat/completions", map[string]any{
		"model": []string{"near", "soon", "sooner", "sim-small"}[r.IntN(4)], "stream": stream, "user": "sim:" + knobs,
		"metadata": map[string]string{"session_id": fmt.Sprint("session-", c.serial.Add(1))},
		"messages": []map[string]string{{"role": "system", "content": c.words(r)}, {"role": "user", "content": "go on"}},
	})
}

func (c *client) anthropic(ctx context.Context, r *rand.Rand) (int, error) {
	return c.json(ctx, r, "/v1/messages", map[string]any{
		"model": "sim-small", "max_tokens": 20, "stream": r.IntN(2) == 0,
		"messages": []map[string]string{{"role": "user", "content": c.words(r)}},
	})
}

func (c *client) embed(ctx context.Context, r *rand.Rand) (int, error) {
	return c.json(ctx, r, "/v1/embeddings", map[string]any{"model": "sim-embed", "input": c.words(r)})
}

func (c *client) upload(ctx context.Context, r *rand.Rand) (int, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("model", "sim-audio")
	part, err := w.CreateFormFile("file", "a.wav")
	if err != nil {
		return 0, err
	}
	_, _ = part.Write(make([]byte, 1<<20+r.IntN(3<<20)))
	_ = w.Close()
	return c.do(ctx, r, http.MethodPost, "/v1/audio/transcriptions", w.FormDataContentType(), b.Bytes(), c.key)
}

func (c *client) cancel(ctx context.Context, r *rand.Rand) (int, error) {
	ctx, stop := context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Millisecond)
	defer stop()
	return c.chat(ctx, r, "tokens=100,itl=20ms", true)
}

func (c *client) unknown(ctx context.Context, r *rand.Rand) (int, error) {
	switch r.IntN(3) {
	case 0:
		return c.json(ctx, r, "/v1/chat/completions", map[string]any{"model": fmt.Sprint("none-", r.Int64()), "messages": []string{}})
	case 1:
		return c.do(ctx, r, http.MethodPost, "/v1/chat/completions", "application/json", []byte(`{"model":`), c.key)
	}
	return c.do(ctx, r, http.MethodGet, fmt.Sprint("/v1/nothing/", r.Int64()), "", nil, c.key)
}

func (c *client) badKey(ctx context.Context, r *rand.Rand) (int, error) {
	return c.do(ctx, r, http.MethodGet, "/v1/models", "", nil, fmt.Sprintf("%s%06x", c.key[:len(c.key)-6], r.IntN(1<<24)))
}
