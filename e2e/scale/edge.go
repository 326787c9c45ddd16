package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// edge is the Edge that is measured.
type edge struct {
	*process
	url, admin        string // http://host:port
	key, token, admTK string
}

// startEdge starts an Edge with keys on and its log at info, and makes a key and a join token for any Node name.
func (h *house) startEdge(ctx context.Context, args ...string) (*edge, error) {
	e := &edge{}
	listen, err := freePort()
	if err != nil {
		return nil, err
	}
	admin, err := freePort()
	if err != nil {
		return nil, err
	}
	e.url, e.admin = "http://"+listen, "http://"+admin
	state := "sqlite://" + filepath.Join(h.dir, "iop.db")
	env := []string{"IOP_EDGE_STATE=" + state, "IOP_ADMIN_URL=" + e.admin}
	var made struct{ Key, Token string }
	if err := h.run(ctx, env, &made, "key", "create", "--name", "scale", "--json"); err != nil {
		return nil, err
	}
	if err := h.run(ctx, env, &made, "join-token", "create", "--json", "--max-nodes", "4096"); err != nil {
		return nil, err
	}
	e.key, e.token = made.Key, made.Token
	args = append([]string{"edge", "--listen", listen, "--admin-listen", admin, "--state", state}, args...)
	e.process, err = h.start("edge", h.iop, nil, args...)
	if err != nil {
		return nil, err
	}
	if err := eventually(ctx, 20*time.Second, "the Edge is ready", func() bool { return status(e.url+"/readyz") == http.StatusOK }); err != nil {
		return nil, fmt.Errorf("%w: %s", err, e.logTail())
	}
	token, err := os.ReadFile(filepath.Join(h.dir, "admin-token"))
	e.admTK = strings.TrimSpace(string(token))
	return e, err
}

// tunnel is the URL that Nodes dial.
func (e *edge) tunnel() string { return "ws" + strings.TrimPrefix(e.url, "http") + "/tunnel/v1" }

// operatorClient asks for no compression, whose buffers would be measured too.
var operatorClient = &http.Client{Transport: &http.Transport{DisableCompression: true}}

func (e *edge) operate(path string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodGet, e.admin+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+e.admTK)
	resp, err := operatorClient.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return resp, err
}

// metrics returns the Edge's samples without labels.
func (e *edge) metrics() (map[string]float64, error) {
	resp, err := e.operate("/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	m := map[string]float64{}
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		name, value, _ := strings.Cut(sc.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			m[name] = v
		}
	}
	return m, sc.Err()
}

// gauge waits until a gauge has reached n.
func (e *edge) gauge(ctx context.Context, name string, n int, within time.Duration) error {
	return eventually(ctx, within, fmt.Sprintf("%s is %d", name, n), func() bool {
		m, err := e.metrics()
		return err == nil && m[name] >= float64(n)
	})
}

// plateau is what was seen while the load stood.
type plateau struct {
	resident int64         // the highest sample
	cpu      time.Duration // used meanwhile
	took     time.Duration
	metrics  map[string]float64 // at the end
}

// cores is how many cores were busy.
func (p plateau) cores() float64 { return p.cpu.Seconds() / p.took.Seconds() }

// watch samples the Edge for a while.
func (e *edge) watch(ctx context.Context, hold time.Duration) (p plateau, err error) {
	began := time.Now()
	before, err := e.cpu()
	if err != nil {
		return p, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < hold {
		rss, err := e.process.resident()
		if err != nil {
			return p, err
		}
		p.resident = max(p.resident, rss)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return p, ctx.Err()
		}
	}
	after, err := e.cpu()
	if err != nil {
		return p, err
	}
	p.cpu, p.took = after-before, time.Since(began)
	p.metrics, err = e.metrics()
	return p, err
}

// profile keeps the Edge's profiles in dir.
func (e *edge) profile(dir string) error {
	if dir == "" {
		return nil
	}
	for _, name := range []string{"heap", "goroutine"} {
		resp, err := e.operate("/debug/pprof/" + name)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".pb.gz"), data, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// report prints a plateau of n of something that began at base bytes, and returns the bytes of each.
func (p plateau) report(what string, n int, base int64) float64 {
	fmt.Printf("%-34s %8d\n", what, n)
	fmt.Printf("%-34s %8.1f MiB\n", "Edge's resident set before", float64(base)/(1<<20))
	fmt.Printf("%-34s %8.1f MiB\n", "highest under load", float64(p.resident)/(1<<20))
	for _, part := range []struct{ name, metric string }{
		{"at the end", "process_resident_memory_bytes"},
		{"  objects, some of them garbage", "go_memstats_heap_alloc_bytes"},
		{"  room between them", "room"},
		{"  free and not given back", "free"},
		{"  stacks", "go_memstats_stack_inuse_bytes"},
	} {
		bytes := p.metrics[part.metric]
		switch part.metric {
		case "room":
			bytes = p.metrics["go_memstats_heap_inuse_bytes"] - p.metrics["go_memstats_heap_alloc_bytes"]
		case "free":
			bytes = p.metrics["go_memstats_heap_idle_bytes"] - p.metrics["go_memstats_heap_released_bytes"]
		}
		fmt.Printf("%-34s %8.1f MiB\n", part.name, bytes/(1<<20))
	}
	fmt.Printf("%-34s %8.2f %% of a core over %s\n", "Edge's CPU", 100*p.cores(), p.took.Round(time.Second))
	return float64(p.resident-base) / float64(n)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func status(url string) int {
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// eventually waits for what other processes bring about.
func eventually(ctx context.Context, within time.Duration, what string, cond func() bool) error {
	deadline := time.Now().Add(within)
	for !cond() {
		if time.Now().After(deadline) {
			return errors.New("not in " + within.String() + ": " + what)
		}
		select {
		case <-time.After(250 * time.Millisecond): // asking costs the Edge memory, too
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
