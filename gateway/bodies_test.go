package gateway

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// asker is a request for room in a budget.
type asker struct {
	got  chan bool
	stop context.CancelFunc
}

func ask(b *budget, who string, n, holds int64) *asker {
	ctx, stop := context.WithCancel(context.Background())
	a := &asker{got: make(chan bool, 1), stop: stop}
	go func() { a.got <- b.acquire(ctx, b.share(who), n, holds) }()
	synctest.Wait()
	return a
}

// is checks where the request is at: "in", "refused" or "waits".
func (a *asker) is(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	state := "waits"
	select {
	case ok := <-a.got:
		state = map[bool]string{true: "in", false: "refused"}[ok]
	default:
	}
	if state != want {
		t.Errorf("the request is %s, want %s", state, want)
	}
}

// release gives back all that a principal's request had, and its buffer.
func (b *budget) release(who string, n int64) {
	if n > firstBuffer {
		b.large.Add(-n)
	}
	b.give(b.share(who), n)
}

func TestBodiesWaitInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100*mib, 50*mib, time.Minute) // 75 MiB for all, 25 more for who holds little
		for _, n := range []int64{30, 20, 20} {
			ask(&b, "greedy", n*mib, 0).is(t, "in")
		}
		second, third := ask(&b, "greedy", 40*mib, 0), ask(&b, "greedy", 40*mib, 0)
		second.is(t, "waits")
		ask(&b, "other", 20*mib, 0).is(t, "in") // of the part for who holds little
		late := ask(&b, "third", 50*mib, 0)
		late.is(t, "waits")
		ask(&b, "small", 1000, 0).is(t, "in") // small ones pass
		b.release("greedy", 30*mib)
		b.release("greedy", 20*mib)
		late.is(t, "waits")
		b.release("other", 20*mib)
		late.is(t, "in") // it holds less than who came before it
		second.is(t, "waits")
		b.release("third", 50*mib)
		second.is(t, "in")
		third.is(t, "waits")
		b.release("greedy", 40*mib)
		third.is(t, "in")
		b.release("greedy", 40*mib)
		b.release("greedy", 20*mib)
		b.release("small", 1000)
		if b.used.Load() != 0 || b.large.Load() != 0 || b.waiting.Load() != 0 || b.share("greedy").waiting != 0 {
			t.Errorf("%d bytes are used, %d large ones, %d wait", b.used.Load(), b.large.Load(), b.waiting.Load())
		}
	})
}

// A body that does not fit is passed by smaller ones for a while only.
func TestBodyIsNotPassedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100*mib, 100*mib, time.Minute)
		ask(&b, "a", 50*mib, 0).is(t, "in")
		large := ask(&b, "b", 60*mib, 0)
		ask(&b, "c", 10*mib, 0).is(t, "in")
		time.Sleep(bodyTurn)
		small := ask(&b, "d", 10*mib, 0)
		small.is(t, "waits")
		b.release("a", 50*mib)
		large.is(t, "in")
		small.is(t, "in")
	})
}

func TestBodyWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100*mib, 100*mib, time.Minute)
		ask(&b, "a", 100*mib, 0).is(t, "in")
		ask(&b, "a", 1000, 0)
		began := time.Now()
		late, gone := ask(&b, "b", mib, 0), ask(&b, "b", mib, 0)
		gone.stop()
		gone.is(t, "refused")
		if ok := <-late.got; ok || time.Since(began) != time.Minute {
			t.Errorf("let in: %v after %v", ok, time.Since(began))
		}
		var many []*asker
		for range maxBodyWaitersEach {
			many = append(many, ask(&b, "c", mib, 0))
		}
		ask(&b, "c", mib, 0).is(t, "refused")
		closing := ask(&b, "d", mib, 0)
		closing.is(t, "waits")
		b.close()
		closing.is(t, "refused")
		for _, a := range many {
			a.is(t, "refused")
		}
		ask(&b, "d", mib, 0).is(t, "refused")
	})
}

// Bodies of unknown length that hold something and want more don't wait for each other.
func TestGrowingBodiesDoNotBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(64*mib, 64*mib, time.Minute)
		var all []*asker
		for _, who := range []string{"a", "b", "c"} {
			ask(&b, who, mib, 0).is(t, "in")
		}
		for _, who := range []string{"a", "b", "c"} {
			all = append(all, ask(&b, who, 63*mib, mib))
		}
		for i, who := range []string{"a", "b", "c"} {
			all[i].is(t, "in")
			b.large.Add(-mib) // the smaller buffer
			b.release(who, 64*mib)
		}
		if b.used.Load() != 0 || b.large.Load() != 0 || b.behind != 0 {
			t.Errorf("%d bytes are used, %d large ones, %d behind", b.used.Load(), b.large.Load(), b.behind)
		}
	})
}

// Memory of a former body counts until it was collected, which happens when it is waited for.
func TestBuffersAreCollected(t *testing.T) {
	b := newBudget(64*mib, 64*mib, time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { b.collect(ctx) })
	share := b.share("a")
	if !b.acquire(ctx, share, 60*mib, 0) {
		t.Fatal("an empty budget has no room")
	}
	buf := b.buffer(60 * mib)
	b.give(share, 60*mib) // though buf is still there

	granted := make(chan bool, 1)
	wg.Go(func() { granted <- b.acquire(ctx, share, 60*mib, 0) })
	for began := collections(); collections() < began+3 || !b.lacksCollection(); {
		select {
		case <-granted:
			t.Fatal("a second body was let in beside the first one's buffer")
		case <-time.After(time.Millisecond):
		}
	}
	runtime.KeepAlive(buf)
	buf = nil
	if !<-granted {
		t.Error("when the first one's buffer was collected the second had no room")
	}
}

// collections is how often the collector has run.
func collections() uint32 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.NumGC
}

// After any sequence all is given back, and never is more taken than there is.
func TestBodiesAtRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100*mib, 50*mib, time.Minute)
		var wg sync.WaitGroup
		served := 0
		var mu sync.Mutex
		for i := range 200 {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			who := strings.Repeat("p", rng.IntN(5))
			wg.Go(func() {
				for range 20 {
					n := int64(rng.IntN(50*mib) >> rng.IntN(12))
					ctx, stop := context.WithTimeout(t.Context(), time.Duration(rng.IntN(200))*time.Second)
					ok := b.acquire(ctx, b.share(who), n, 0)
					stop()
					if used := b.used.Load(); used > 200*mib || b.large.Load() > 100*mib+50*mib {
						t.Errorf("%d bytes are used", used)
					}
					if !ok {
						continue
					}
					time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
					mu.Lock()
					served++
					mu.Unlock()
					b.release(who, n)
				}
			})
		}
		wg.Wait()
		if b.used.Load() != 0 || b.large.Load() != 0 || b.waiting.Load() != 0 || served < 1000 {
			t.Errorf("%d bytes are used, %d large ones, %d wait, %d were served", b.used.Load(), b.large.Load(), b.waiting.Load(), served)
		}
	})
}

func TestSmallBodiesCostNothing(t *testing.T) {
	b := newBudget(64*mib, 64*mib, time.Minute)
	share := b.share("a")
	if n := testing.AllocsPerRun(1000, func() {
		if !b.acquire(t.Context(), share, firstBuffer, 0) {
			t.Fatal("no room")
		}
		b.give(share, firstBuffer)
	}); n > 0 {
		t.Errorf("%v allocations for a small body", n)
	}
	s := &Server{cfg: Config{MaxBodyBytes: 64 * mib}}
	var sizes []int64
	for size := int64(0); s.nextSize(size) > size; {
		size = s.nextSize(size)
		sizes = append(sizes, size)
	}
	if !slices.Equal(sizes, []int64{64 << 10, mib, 64 * mib}) {
		t.Errorf("a body of unknown length grows by %v", sizes)
	}
}

// deadlines is a ResponseWriter that notes the read deadline.
type deadlines struct {
	http.ResponseWriter
	read time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error { d.read = t; return nil }

// Each window has to bring a step of a body: the deadline moves only when it did.
func TestBodyMustCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &deadlines{}
		began := time.Now()
		in := slowReader{
			from: strings.NewReader(strings.Repeat("x", 4*mib)), rc: http.NewResponseController(w), room: 64 * mib,
			contested: func() bool { return false },
		}
		trickle := make([]byte, 2<<10)
		for range 15 { // just below a step
			_, _ = in.Read(trickle)
			time.Sleep(time.Second)
			if got := w.read.Sub(began); got != bodyWindow {
				t.Fatalf("the deadline is %v after the first byte", got)
			}
		}
		_, _ = in.Read(trickle)
		_, _ = in.Read(trickle) // the step is complete: a new window
		if got := w.read.Sub(began); got != bodyWindow+15*time.Second {
			t.Errorf("then it is %v after the first byte", got)
		}
		in.rest()
		if !w.read.IsZero() {
			t.Errorf("while nothing is read the deadline is %v", w.read)
		}
		_, _ = in.Read(trickle)
		if got := time.Until(w.read); got != bodyWindow {
			t.Errorf("after that it is in %v", got)
		}
	})
}

// A client that announces much and sends little is cut when others wait for the room that it takes, and not before: a slow
// link alone does no harm.
func TestSlowBodyGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		contested := false
		in := slowReader{
			from: strings.NewReader(strings.Repeat("x", 64*mib)), rc: http.NewResponseController(&deadlines{}), room: 64 * mib,
			contested: func() bool { return contested },
		}
		second := func(bytes int) error {
			time.Sleep(time.Second)
			_, err := io.ReadFull(&in, make([]byte, bytes))
			return err
		}
		const pace = 64 * mib / bodyWindows / int(bodyWindow/time.Second)
		for range 300 {
			if err := second(pace / 2); err != nil {
				t.Fatalf("while nobody waits: %v", err)
			}
		}
		contested = true
		time.Sleep(time.Second)
		if _, err := in.Read(make([]byte, 1)); !errors.Is(err, errTooSlow) {
			t.Errorf("when others wait: %v", err)
		}
		in.rest()
		for range 60 {
			if err := second(pace + 1); err != nil {
				t.Fatalf("at the pace that others may expect: %v", err)
			}
		}
	})
}
