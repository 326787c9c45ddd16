package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/state"
)

// TestStormOfLimits: keys with all limits, clients that ask for news and leave at any moment, routes that change, providers
// of every mood. In the end nothing is held, and each key's budget is charged what the books say.
func TestStormOfLimits(t *testing.T) {
	requests := 1500
	if testing.Short() {
		requests = 300
	}
	files := []string{
		"advertised_models: serve\nroutes:\n  - model: chat\n    retry: {attempts: 2, on: [unreachable, overloaded, gateway, lost, server_error]}\n    policy: prefix_affinity\n    rename_model: true\n    parameters: {caps: {max_tokens: 64}}\n    groups:\n      - targets: [{node: a, model: m}]\n      - targets: [{node: b, model: m}]\n",
		"advertised_models: serve\nroutes:\n  - model: chat\n    policy: weighted\n    timeouts: {queue: 100ms, first_byte: 5s}\n    targets: [{node: b, model: m, weight: 3}, {node: a, model: m}]\n",
		"advertised_models: serve\nroutes: []\n",
	}
	e, path := withRoutes(t, files[0])
	e.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	e.addNode("a", 4, moody, "m")
	e.addNode("b", 2, moody, "m")
	type owned struct {
		id     state.KeyID
		secret string
	}
	var keys []owned
	for i := range 4 {
		key, secret, err := e.store.CreateKey(t.Context(), state.KeySpec{
			Name: fmt.Sprint("k", i), Owner: fmt.Sprint("owner-", i%2), Concurrency: 12, RPM: 1e6, TPM: 1e9, MonthlyTokens: 1e9, Priority: i,
		})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, owned{key.ID, secret.Reveal()})
	}
	stop := make(chan struct{})
	var reloads, clients sync.WaitGroup
	reloads.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				e.reload(path, files[i%len(files)])
			}
		}
	})
	work := make(chan int, requests)
	for i := range requests {
		work <- i
	}
	close(work)
	for range 32 {
		clients.Go(func() {
			for i := range work {
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Millisecond)
				model := []string{"chat", "m", "chat"}[rand.IntN(3)]
				req := e.request(http.MethodPost, chat, fmt.Sprintf(`{"model":%q,"stream":%v,"max_tokens":%d,"messages":%q}`,
					model, rand.IntN(2) == 0, 1+rand.IntN(100), strings.Repeat("x", rand.IntN(5000)))).WithContext(ctx)
				req.Header.Set("Authorization", "Bearer "+keys[i%len(keys)].secret)
				req.Header.Set("X-IOP-Queue-Updates", "1")
				if resp, err := e.client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				leave()
			}
		})
	}
	clients.Wait()
	close(stop)
	reloads.Wait()
	e.idle()
	records := e.records()
	ids, spent := map[string]bool{}, map[state.KeyID]int64{}
	for _, r := range records {
		if ids[string(r.Run)] {
			t.Errorf("run %s is booked twice", r.Run)
		}
		ids[string(r.Run)] = true
		spent[r.Key] += r.Usage.Input + r.Usage.Output
	}
	if accepted := e.metric("iop_requests_accepted_total"); accepted != int64(len(records)) {
		t.Errorf("%d runs, %d records", accepted, len(records))
	}
	e.reload(path, files[2])
	for _, key := range keys {
		if booked, err := e.store.MonthTokens(t.Context(), key.id, time.Now()); err != nil || booked != spent[key.id] {
			t.Errorf("booked are %d, %v; the records say %d", booked, err, spent[key.id])
		}
		left := int(1e9 - spent[key.id])
		e.as(key.secret, func() {
			status, h, body := e.post(chat, fmt.Sprintf(`{"model":"nobody","messages":[],"max_tokens":%d}`, left))
			wantRefusal(t, status, h, body, "insufficient_quota", true)
			if status, _, body := e.post(chat, fmt.Sprintf(`{"model":"nobody","messages":[],"max_tokens":%d}`, left-1)); status != 404 {
				t.Errorf("all that is left: %d %s", status, body)
			}
		})
	}
	e.idle()
}
