package gateway

import (
	"encoding/hex"
	"math/rand/v2"
)

// randomHex returns 2n hexadecimal digits of the runtime's generator (ChaCha8, seeded by the system). It names things
// in logs; nothing is guarded by its being secret.
func randomHex(n int) string {
	var room [32]byte
	b := room[:0]
	for len(b) < n {
		v := rand.Uint64()
		b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
	}
	return hex.EncodeToString(b[:n])
}

func newRequestID() string {
	var b [36]byte
	copy(b[:], "req_")
	var raw [16]byte
	lo, hi := rand.Uint64(), rand.Uint64()
	for i := range 8 {
		raw[i], raw[8+i] = byte(lo>>(8*i)), byte(hi>>(8*i))
	}
	hex.Encode(b[4:], raw[:])
	return string(b[:])
}
