package e2e

import (
	"net/http"
	"sync"
	"testing"
)

// TestUploadsLeaveRoom: whoever fills the memory for request bodies with uploads keeps nobody else out. It has the machine
// for itself: no parallel test.
func TestUploadsLeaveRoom(t *testing.T) {
	s := newStack(t, stackConfig{simArgs: []string{"--slots", "64"}})
	greedy, other := s.with(s.newKey("greedy", "--owner", "greedy")), s.with(s.newKey("other"))
	s.sims[0].control(t, "POST", "/sim/config", map[string]any{"ttft": "4s"}, nil) // so long an upload is held
	const size = 40 << 20
	var mu sync.Mutex
	count := map[int]int{}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			status, header, body := greedy.upload(t, size, i%4 == 3)
			mu.Lock()
			defer mu.Unlock()
			count[status]++
			if status != http.StatusOK {
				t.Errorf("an upload: %d %v %s", status, header, tail(string(body), 300))
			}
		})
	}
	eventually(t, patience, "the uploads fill what one may have", func() bool { return s.metric("iop_body_budget_bytes") > 320<<20 })
	served, most := 0, 0.0
	for range 25 {
		if res, body := other.post("/v1/chat/completions", chat("sim-small", "ttft=0s,tokens=1", false)); res.StatusCode != http.StatusOK {
			t.Errorf("a small request of somebody else: %s %s", res.Status, body)
		}
		served++
		most = max(most, s.metric("iop_body_budget_bytes"))
	}
	if status, _, body := other.upload(t, 1<<20, true); status != http.StatusOK {
		t.Errorf("1 MiB of somebody else: %d %s", status, tail(string(body), 300))
	}
	all.Wait()
	s.quiet()
	edge := s.edge.memory("VmHWM")
	t.Logf("uploads %v, %d small requests beside them; bodies of %.0f MiB, the Edge had %d MiB at most", count, served, most/(1<<20), edge>>20)
	if most < 256<<20 {
		t.Errorf("only %.0f MiB were taken: this shows nothing", most/(1<<20))
	}
	if limit := int64(512+512/4+64) << 20; edge > limit {
		t.Errorf("the Edge had %d MiB", edge>>20)
	}
	if status, _, body := greedy.upload(t, size, false); status != http.StatusOK {
		t.Errorf("afterwards: %d %s", status, tail(string(body), 300))
	}
}
