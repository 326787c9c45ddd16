package main

import "testing"

func TestSmapsBySort(t *testing.T) {
	const smaps = `00400000-01062000 r-xp 00000000 fe:00 9996254                            /tmp/iop
Size:              12680 kB
Rss:               11016 kB
VmFlags: rd ex mr mw me
01e1c000-03e68000 rw-p 00000000 00:00 0
Rss:                 152 kB
3fc3ef000000-3fc3f2000000 rw-p 00000000 00:00 0
Rss:               35580 kB
7f7b84510000-7f7b84650000 rw-p 00000000 00:00 0
Rss:                 804 kB
7f7bcb621000-7f7bcb629000 rw-s 00000000 fe:00 9977901                    /tmp/x/iop.db-shm
Rss:                  32 kB
7ffd01139000-7ffd0115a000 rw-p 00000000 00:00 0                          [stack]
Rss:                  16 kB
`
	got, err := parseSmaps([]byte(smaps), "iop")
	want := residence{total: 47600 << 10, heap: 35580 << 10, program: 11016 << 10, shared: 32 << 10, rest: (152 + 804 + 16) << 10}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := parseSmaps([]byte("what-ever rw-p 0 0 0\n"), "iop"); err == nil {
		t.Error("an address that is none was taken")
	}
}
