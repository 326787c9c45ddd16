package sim

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener of connections in memory, so that a whole server runs in a bubble of synthetic time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	gone  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.gone:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.gone) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// inBubble runs a simulator in synthetic time; ask sends one request and returns the answer, whose body is open.
func inBubble(t *testing.T, change func(*Config), test func(t *testing.T, s *Server, ask func(body string) *http.Response)) {
	synctest.Test(t, func(t *testing.T) {
		c := DefaultConfig()
		if change != nil {
			change(&c)
		}
		s, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		l := &pipes{conns: make(chan net.Conn), gone: make(chan struct{})}
		hs := &http.Server{Handler: s.Handler()}
		done := make(chan error, 1)
		go func() { done <- hs.Serve(l) }()
		defer func() {
			hs.Close()
			<-done
		}()
		test(t, s, func(body string) *http.Response {
			near, far := net.Pipe()
			l.conns <- far
			t.Cleanup(func() { near.Close() })
			go writeRequest(near, chatPath, body)
			resp, err := http.ReadResponse(bufio.NewReader(near), nil)
			if err != nil {
				t.Error(err)
				return nil
			}
			return resp
		})
	})
}

// arrivals reads a streamed chat answer and says when each token came, counted from began.
func arrivals(t *testing.T, resp *http.Response, began time.Time) (at []time.Duration) {
	t.Helper()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"content":"`) && !strings.Contains(lines.Text(), `"role"`) {
			at = append(at, time.Since(began))
		}
	}
	if lines.Err() != nil {
		t.Error(lines.Err())
	}
	return at
}

func TestPaceOfAStream(t *testing.T) {
	for knobs, want := range map[string][]time.Duration{
		"tokens=3,ttft=11m":                               {11 * time.Minute, 11 * time.Minute, 11 * time.Minute},
		"tokens=3,ttft=1s,itl=2s":                         {time.Second, 3 * time.Second, 5 * time.Second},
		"tokens=3,tps=4":                                  {0, 250 * time.Millisecond, 500 * time.Millisecond},
		"tokens=4,itl=1s,stall_after=2,stall=50s":         {0, time.Second, 52 * time.Second, 53 * time.Second},
		"tokens=2,ttft=1s,headers=early":                  {time.Second, time.Second},
		"tokens=2,keep_open_after_done=3s":                {0, 0},
		"tokens=3,stall_after=0,stall=70s,text=emoji":     {70 * time.Second, 70 * time.Second, 70 * time.Second},
		"tokens=3,itl=1s,ttft=1s,reasoning=2,comments":    {3 * time.Second, 4 * time.Second, 5 * time.Second},
		"tokens=2,itl=1s,ttft=1s,bigevent=100000,split=9": {time.Second, 2 * time.Second},
	} {
		inBubble(t, nil, func(t *testing.T, _ *Server, ask func(string) *http.Response) {
			began := time.Now()
			got := arrivals(t, ask(chat(knobs, true)), began)
			if len(got) != len(want) {
				t.Fatalf("%s: %v", knobs, got)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("%s: token %d after %s, want %s", knobs, i, got[i], want[i])
				}
			}
			if end := time.Since(began); strings.Contains(knobs, "keep_open") && end != 3*time.Second {
				t.Errorf("the body ended after %s", end)
			}
		})
	}
}

func TestPaceOfAWholeAnswer(t *testing.T) {
	slow := func(c *Config) { c.TTFT, c.TokensPerSecond = time.Minute, 2 }
	inBubble(t, slow, func(t *testing.T, _ *Server, ask func(string) *http.Response) {
		began := time.Now()
		resp := ask(chat("tokens=5", false))
		if d := time.Since(began); d != time.Minute+2*time.Second {
			t.Errorf("it took %s", d)
		}
		resp.Body.Close()
	})
}

func TestEarlyHeadersComeBeforeTheFirstToken(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *Server, ask func(string) *http.Response) {
		began := time.Now()
		resp := ask(chat("ttft=1h,headers=early", true))
		if d := time.Since(began); d != 0 || resp.StatusCode != 200 {
			t.Errorf("head after %s", d)
		}
		resp.Body.Close()
	})
}

func TestQueueIsInOrderAndSlotsAreExact(t *testing.T) {
	two := func(c *Config) { c.Slots, c.Queue = 2, 4 }
	inBubble(t, two, func(t *testing.T, s *Server, ask func(string) *http.Response) {
		began := time.Now()
		var wg sync.WaitGroup
		ends, status := make([]time.Duration, 7), make([]int, 7)
		for i := range 7 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				resp := ask(chat("ttft=10s", false))
				io.Copy(io.Discard, resp.Body)
				ends[i], status[i] = time.Since(began).Round(time.Second), resp.StatusCode
			})
		}
		wg.Wait()
		for i, want := range []time.Duration{10, 10, 20, 20, 30, 30, 0} {
			if ends[i] != want*time.Second {
				t.Errorf("request %d ended after %s, want %s", i, ends[i], want*time.Second)
			}
		}
		if status[6] != 429 {
			t.Errorf("the seventh: %d", status[6])
		}
		synctest.Wait()
		if st := s.Stats(); st.Peak != 2 || st.QueuePeak != 4 || st.Finished != 6 || st.Rejected != 1 || st.Active+st.Queued != 0 || st.Busy != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestSlowReadOfTheBody(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *Server, ask func(string) *http.Response) {
		if err := s.configure(map[string]any{"slow_read": "1000"}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		body := strings.Replace(chat("", false), "hello", strings.Repeat("x", 20000), 1)
		ask(body).Body.Close()
		if d := time.Since(began); d < 20*time.Second || d > 22*time.Second {
			t.Errorf("20 kB at 1 kB/s took %s", d)
		}
	})
}

func TestStamps(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *Server, ask func(string) *http.Response) {
		resp := ask(chat("text=stamp,tokens=3,itl=1s", true))
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		stamps := strings.Fields(contentOf(t, string(b)))
		if len(stamps) != 3 || len(stamps[2]) != len("946684800000000000") || stamps[1] >= stamps[2] {
			t.Errorf("%v", stamps)
		}
	})
}
