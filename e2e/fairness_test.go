package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fairFile has two models of one Node, which share its places.
const fairFile = `
routes:
  - model: small
    targets: [{model: sim-small}]
  - model: large
    targets: [{model: sim-large}]
`

// contender is a principal that sends many requests at once.
type contender struct {
	owner    string
	weight   int
	requests int
	models   []string // in turn
	tokens   int      // max_tokens of each, by which the Edge estimates its work
	key      string
	answers  []*answer
}

// TestFairShares has 200 requests on four places, three in four of them from one principal. While all three have something
// to wait for, each gets what its weight says, and nobody is refused or forgotten.
func TestFairShares(t *testing.T) {
	t.Parallel()
	for name, contenders := range map[string][]contender{
		"one model": {
			{owner: "flood", weight: 1, requests: 150, models: []string{"small"}, tokens: 10},
			{owner: "alice", weight: 1, requests: 17, models: []string{"small"}, tokens: 10},
			{owner: "bob", weight: 2, requests: 33, models: []string{"small"}, tokens: 10},
		},
		"two models on the same places": {
			{owner: "flood", weight: 1, requests: 150, models: []string{"small", "large"}, tokens: 10},
			{owner: "alice", weight: 1, requests: 17, models: []string{"small"}, tokens: 10},
			{owner: "bob", weight: 2, requests: 33, models: []string{"large"}, tokens: 10},
		},
		"work counts, not requests": {
			{owner: "flood", weight: 1, requests: 150, models: []string{"small"}, tokens: 100},
			{owner: "alice", weight: 1, requests: 17, models: []string{"large"}, tokens: 200},
			{owner: "bob", weight: 2, requests: 33, models: []string{"small", "large"}, tokens: 200},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fairShares(t, contenders)
		})
	}
}

func fairShares(t *testing.T, contenders []contender) {
	s := newRouted(t, fairFile)
	sim := s.startSim("--slots", "16")
	s.launchNode("node-1", "--provider", "sim="+sim.url+",capacity=4")
	s.serving("node-1", "sim-small")
	var held []*answer
	for range 4 { // so that all are there before the first gets a place
		held = append(held, s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("small", "tokens=100000,itl=50ms", true), nil))
	}
	sim.active(t, 4)
	waiting := 0
	for i := range contenders {
		waiting += s.contend(&contenders[i])
		s.queued(waiting) // the flood is first in line
	}
	s.askForQueue(t, contenders)
	for _, a := range held {
		a.reaches(t, 1, patience)
		iop(t, s.env, "cancel", a.header.Get("X-Iop-Run-Id"))
		a.end(t, patience)
	}
	for _, c := range contenders {
		for i, a := range c.answers {
			a.end(t, 60*time.Second).ok(t, fmt.Sprintf("%s's number %d", c.owner, i))
		}
	}
	s.sharesAre(t, contenders)
	s.quiet()
}

// contend sends the contender's requests and returns how many.
func (s *stack) contend(c *contender) int {
	c.key = s.newKey(c.owner, "--owner", c.owner, "--weight", fmt.Sprint(c.weight))
	for i := range c.requests {
		body := chat(c.models[i%len(c.models)], "tokens=5,itl=16ms", i%2 == 0)
		body["max_tokens"] = c.tokens
		c.answers = append(c.answers, s.askAs(context.Background(), c.key, "/v1/chat/completions", body, nil))
	}
	return c.requests
}

// askForQueue: the operator sees who waits.
func (s *stack) askForQueue(t *testing.T, contenders []contender) {
	t.Helper()
	var queues struct {
		Data []struct {
			Route      string
			Waiting    int
			Principals []struct {
				Principal       string
				Waiting, Weight int
			}
		}
	}
	s.operator("/queue", &queues)
	waiting := map[string]int{}
	for _, q := range queues.Data {
		for _, p := range q.Principals {
			waiting[p.Principal] += p.Waiting
			for _, c := range contenders {
				if c.owner == p.Principal && c.weight != p.Weight {
					t.Errorf("%s waits with weight %d, not %d", c.owner, p.Weight, c.weight)
				}
			}
		}
	}
	for _, c := range contenders {
		if waiting[c.owner] != c.requests {
			t.Errorf("%d of %s's %d requests wait", waiting[c.owner], c.owner, c.requests)
		}
	}
}

// narrowFile has a route that few may wait for, beside one on the same place.
const narrowFile = `
routes:
  - model: narrow
    queue_limit: 5
    targets: [{model: sim-small}]
  - model: chat
    targets: [{model: sim-small}]
`

// TestQueueFull: FAULTS 13. Beyond the limit of a route's queue there is a 429 that says when to come again, for that route
// alone, and whoever is in line is served.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	s, held := newNarrowWorld(t)
	var all []*answer
	for i := range 5 {
		all = append(all, s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("narrow", "tokens=2", i%2 == 0), nil))
	}
	s.queued(5)
	for _, stream := range []bool{false, true} {
		a := s.chatNow(t, "narrow", "", stream)
		a.refused(t, "beyond the limit", http.StatusTooManyRequests, "queue_full")
		if wait, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || wait < 1 || wait > 60 {
			t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
		}
	}
	all = append(all, s.chatLater("tokens=2", true)) // another route's queue has room
	s.queued(6)
	iop(t, s.env, "cancel", held.header.Get("X-Iop-Run-Id"))
	for i, a := range all {
		a.end(t, patience).ok(t, fmt.Sprint(i))
	}
	s.quiet()
}

// newNarrowWorld has one place, which is taken.
func newNarrowWorld(t *testing.T) (s *routed, held *answer) {
	t.Helper()
	s = newRouted(t, narrowFile)
	sim := s.startSim()
	s.launchNode("node-1", "--provider", "sim="+sim.url+",capacity=1")
	s.serving("node-1", "sim-small")
	held = s.chatLater("tokens=100000,itl=20ms", true)
	held.reaches(t, 2, patience)
	return s, held
}

// TestPriorities: of one owner's requests those of the key with the higher priority go first. Another owner's do not.
func TestPriorities(t *testing.T) {
	t.Parallel()
	s, held := newNarrowWorld(t)
	keys := map[string]string{
		"low":   s.newKey("low", "--owner", "alice", "--priority", "-5"),
		"high":  s.newKey("high", "--owner", "alice", "--priority", "5"),
		"other": s.newKey("other", "--owner", "bob"),
	}
	waiting := 0
	var all []*answer
	for _, who := range []string{"low", "low", "low", "low", "high", "high", "high", "high", "other", "other", "other", "other"} {
		body := chat("chat", "ttft=60ms,tokens=1", false)
		body["messages"] = []map[string]string{{"role": "user", "content": "from " + who}}
		a := s.askAs(context.Background(), keys[who], "/v1/chat/completions", body, nil)
		all, waiting = append(all, a), waiting+1
		s.queued(waiting)
	}
	iop(t, s.env, "cancel", held.header.Get("X-Iop-Run-Id"))
	for _, a := range all {
		a.end(t, patience).ok(t, "in line")
	}
	var alice []string
	others := 0
	ran := s.sims[0].inferences(t)[1:] // without what held the place
	if len(ran) != 12 {
		t.Fatalf("the provider has seen %d requests", len(ran))
	}
	for i, r := range ran {
		_, who, _ := strings.Cut(r.Body, `"content":"from `)
		who, _, _ = strings.Cut(who, `"`)
		if who != "other" {
			alice = append(alice, who)
		} else if i < 8 {
			others++
		}
	}
	if want := []string{"high", "high", "high", "high", "low", "low", "low", "low"}; !slices.Equal(alice, want) {
		t.Errorf("the order among one owner's is %q", alice)
	}
	if others < 3 {
		t.Errorf("of the first eight %d were of the other owner, who has half of the turns", others)
	}
	s.quiet()
}

// ranRecord is what is kept of a run.
type ranRecord struct {
	Principal, Outcome string
	Started            time.Time
	QueueMS            float64 `json:"queue_ms"`
	DurationMS         float64 `json:"duration_ms"`
}

func (r *ranRecord) ended() time.Time {
	return r.Started.Add(time.Duration(r.DurationMS * float64(time.Millisecond)))
}

// sharesAre looks at the records of what ran: in the span in which all contenders have something to wait for, the work
// that was completed for each is its weight's share of all.
func (s *stack) sharesAre(t *testing.T, contenders []contender) {
	t.Helper()
	records := s.usageRecords(t)
	slices.SortFunc(records, func(a, b ranRecord) int { return a.ended().Compare(b.ended()) })
	left, done := map[string]int{}, map[string]int{}
	weights := 0
	for _, c := range contenders {
		left[c.owner], weights = c.requests, weights+c.weight
	}
	span := 0
	for _, r := range records {
		if left[r.Principal]--; left[r.Principal] < 4 { // of its last some are at work, and none waits
			break
		}
		done[r.Principal]++
		span++
	}
	total := 0
	for _, c := range contenders {
		total += done[c.owner] * c.tokens
	}
	for _, c := range contenders {
		share, want := float64(done[c.owner]*c.tokens)/float64(total), float64(c.weight)/float64(weights)
		t.Logf("%s: %d runs, %.3f of the work with a weight of %d in %d", c.owner, done[c.owner], share, c.weight, weights)
		// A tenth, and the one run that may be counted here or there.
		if slack := 0.1*want + 1.5*float64(c.tokens)/float64(total); share < want-slack || share > want+slack {
			t.Errorf("%s got %.3f of the work, and should %.3f", c.owner, share, want)
		}
	}
	if span < 40 {
		t.Errorf("the span has %d runs: it shows nothing", span)
	}
}

// usageRecords are the records of all runs that completed for a principal with a name.
func (s *stack) usageRecords(t *testing.T) (records []ranRecord) {
	t.Helper()
	req, err := http.NewRequest("GET", s.admin+"/admin/v1/usage/records?format=json", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.adminToken())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", res.Status, err, data)
	}
	for line := range strings.Lines(string(data)) {
		var r ranRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if r.Outcome == "completed" && !strings.HasPrefix(r.Principal, "key:") {
			records = append(records, r)
		}
	}
	return records
}
