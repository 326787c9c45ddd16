package lease

import (
	"runtime"
	"testing"
	"time"
)

func BenchmarkSeal(b *testing.B) {
	_, sealer, to := edge(b)
	credential := secret(b, testCredential)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, _, err := sealer.Seal(binding(), credential, to); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	w := newWorld(b)
	token := newDraft().token()
	b.ReportAllocs()
	for b.Loop() {
		w.replay = newReplayCache(1)
		opened, err := w.Open(token, w.want)
		if err != nil {
			b.Fatal(err)
		}
		opened.Close()
	}
}

// BenchmarkSealOpen is what a leased run costs more than one without, both ends together.
func BenchmarkSealOpen(b *testing.B) {
	w, _, sealer, to := edgeWorld(b)
	w.replay.bound = 1 << 30
	credential := secret(b, testCredential)
	b.ReportAllocs()
	for b.Loop() {
		token, _, _, err := sealer.Seal(binding(), credential, to)
		if err != nil {
			b.Fatal(err)
		}
		opened, err := w.Open(token, w.want)
		if err != nil {
			b.Fatalf("refused for %q", refusal(b, err))
		}
		opened.Close()
	}
}

// BenchmarkReplayCacheMemory fills the cache to its bound.
func BenchmarkReplayCacheMemory(b *testing.B) {
	for b.Loop() {
		cache := newReplayCache(100_000)
		grown := heapGrowth(func() {
			for n := range 100_000 {
				cache.insert(numberedID(n), testNow)
			}
		})
		b.ReportMetric(float64(grown)/100_000, "B/lease")
		runtime.KeepAlive(cache)
	}
}

// BenchmarkReplayFlood is one more lease when the cache is full.
func BenchmarkReplayFlood(b *testing.B) {
	cache := newReplayCache(DefaultReplayBound)
	n := 0
	for ; n < DefaultReplayBound; n++ {
		cache.insert(numberedID(n), time.Now().Add(time.Hour))
	}
	b.ReportAllocs()
	for b.Loop() {
		cache.buckets[0].since = time.Now() // the bound is what is measured, not what happens when time passes
		if got := cache.insert(numberedID(n), time.Now().Add(time.Hour)); got != ReasonReplayCacheFull {
			b.Fatal(got)
		}
		n++
	}
}

// BenchmarkGarbage is what a forged token costs.
func BenchmarkGarbage(b *testing.B) {
	w := newWorld(b)
	token := newDraft().token()
	token[len(token)-30] ^= 1
	if !tokenByte[token[len(token)-30]] {
		token[len(token)-30] = 'A'
	}
	b.ReportAllocs()
	for b.Loop() {
		if w.reasonOf(b, token) == 0 {
			b.Fatal("opened")
		}
	}
}
