package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"iop/state"
)

// level is what the bucket holds, in tokens times a minute.
func level(b *bucket) *big.Int {
	n := new(big.Int).Mul(big.NewInt(b.whole), big.NewInt(minute))
	return n.Add(n, new(big.Int).SetUint64(b.part))
}

// The bucket's arithmetic beside that of whole numbers without bounds.
func TestBucketIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, limit := range []int64{1, 2, 7, 59, 60, 61, 999, 1e6 + 3, 123456789, state.MaxLimit - 1, state.MaxLimit} {
		var b bucket
		now := rng.Int64N(1 << 40)
		b.update(limit, now)
		full := new(big.Int).Mul(big.NewInt(limit), big.NewInt(minute))
		want := new(big.Int).Set(full)
		for range 5000 {
			elapsed := int64(math.Exp(rng.Float64() * 30)) // a nanosecond to three hours
			if rng.IntN(100) == 0 {
				elapsed = math.MaxInt64 // 290 years, which is all that a clock of nanoseconds has
				now, b.at = 0, 0
			}
			if now > math.MaxInt64-elapsed {
				now, b.at = 0, 0
			}
			now += elapsed
			b.refill(now)
			want.Add(want, new(big.Int).Mul(big.NewInt(limit), big.NewInt(elapsed)))
			if want.Cmp(full) > 0 {
				want.Set(full)
			}
			if level(&b).Cmp(want) != 0 {
				t.Fatalf("limit %d: it holds %v, want %v", limit, level(&b), want)
			}
			n := rng.Int64N(limit) + 1
			need := new(big.Int).Sub(new(big.Int).Mul(big.NewInt(n), big.NewInt(minute)), want)
			wait := new(big.Int).Div(need.Add(need, big.NewInt(limit-1)), big.NewInt(limit))
			if wait.Sign() < 0 {
				wait.SetInt64(0)
			}
			if wait.Cmp(big.NewInt(forever)) > 0 {
				wait.SetInt64(forever)
			}
			if got := b.wait(n); got != wait.Int64() {
				t.Fatalf("limit %d: %d tokens take %d ns, want %v", limit, n, got, wait)
			}
			change := rng.Int64N(2*state.MaxRunTokens) - state.MaxRunTokens
			if rng.IntN(2) == 0 {
				change = rng.Int64N(2*limit+1) - limit
			}
			b.add(change)
			want.Add(want, new(big.Int).Mul(big.NewInt(change), big.NewInt(minute)))
			if want.Cmp(full) > 0 {
				want.Set(full)
			}
		}
	}
}

func TestBucketAtItsEnds(t *testing.T) {
	var b bucket
	b.update(math.MaxInt64, 0)
	if b.limit != state.MaxLimit || b.whole != state.MaxLimit {
		t.Errorf("a limit above all: %+v", b)
	}
	b.update(1, 0)
	for range 3 {
		b.add(-maxDebt)
	}
	if b.whole != -maxDebt || b.wait(1) != forever {
		t.Errorf("a debt without end: %+v, wait %d", b, b.wait(1))
	}
	b.refill(math.MaxInt64)
	if want := -maxDebt + math.MaxInt64/minute; b.whole != want {
		t.Errorf("refilled for 290 years: %d, want %d", b.whole, want)
	}
	b.update(0, math.MaxInt64)
	if b.wait(1) != 0 || b.whole != 0 {
		t.Errorf("no limit any more: %+v", b)
	}
}

func TestBucketOfChangedLimit(t *testing.T) {
	for _, test := range []struct{ old, whole, limit, want int64 }{
		{100, 100, 10, 10},
		{100, 10, 10, 1},
		{10, 10, 100, 100},
		{10, 5, 100, 50},
		{10, 0, 100, 0},
		{10, -7, 100, -7},
		{10, 3, 10, 3},
		{0, 0, 10, 10},
		{state.MaxLimit, state.MaxLimit, state.MaxLimit - 1, state.MaxLimit - 1},
	} {
		b := bucket{limit: test.old, whole: test.whole}
		b.update(test.limit, 0)
		if b.whole != test.want {
			t.Errorf("%+v: %d", test, b.whole)
		}
	}
}
