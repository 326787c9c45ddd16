package tunnel

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/tunnel/wire"
)

// rawPeer is one end of a tunnel on a bare connection: it writes what it likes, when it likes, and reads or does not.
type rawPeer struct {
	conn    net.Conn
	br      *bufio.Reader
	client  bool // its frames are masked (with 0), the other end's are not
	batch   []byte
	gather  bool // frames go into batch
	seq     map[uint32]uint32
	reading sync.WaitGroup

	mu     sync.Mutex
	cond   *sync.Cond
	paused bool
	beat   uint64 // id of the last HEARTBEAT seen
	ready  int    // READY, READY_ACK seen
	acks   int    // HEARTBEAT_ACKs seen
}

func newRawPeer(conn net.Conn, br *bufio.Reader, client bool) *rawPeer {
	p := &rawPeer{conn: conn, br: br, client: client, seq: make(map[uint32]uint32)}
	p.cond = sync.NewCond(&p.mu)
	p.reading.Go(p.read)
	return p
}

// rawDial upgrades as a client would.
func rawDial(t testing.TB, n *pipeNet) *rawPeer {
	t.Helper()
	near, far := net.Pipe()
	n.conns <- far
	_, err := io.WriteString(near, "GET "+wire.Path+" HTTP/1.1\r\nHost: edge.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "+wire.Subprotocol+"\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(near)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}
	return newRawPeer(near, br, true)
}

// rawAccept upgrades as a server would.
func rawAccept(t testing.TB, conn net.Conn) *rawPeer {
	t.Helper()
	br := bufio.NewReader(conn)
	req, err := http.ReadRequest(br)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: "+wire.Subprotocol+
		"\r\nSec-WebSocket-Accept: "+base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	return newRawPeer(conn, br, false)
}

// message writes one WebSocket message. The other end may be gone.
func (p *rawPeer) message(opcode byte, payload []byte) {
	head := []byte{0x80 | opcode, 127, 0, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint64(head[2:], uint64(len(payload)))
	if len(payload) < 126 {
		head = []byte{0x80 | opcode, byte(len(payload))}
	} else if len(payload) < 1<<16 {
		head = []byte{0x80 | opcode, 126, byte(len(payload) >> 8), byte(len(payload))}
	}
	if p.client {
		head[1] |= 0x80
		head = append(head, 0, 0, 0, 0)
	}
	_, _ = p.conn.Write(append(head, payload...))
}

// frame sends one frame, numbered off the count by skew, now or with the batch.
func (p *rawPeer) frame(typ wire.Type, flags wire.Flags, stream uint32, skew uint32, payload []byte) {
	seq := p.seq[stream] + skew
	p.seq[stream] = seq + 1
	f := wire.AppendFrame(nil, wire.FrameHeader{Type: typ, Flags: flags, Stream: stream, Seq: seq}, payload)
	if p.gather && len(p.batch)+len(f) <= wire.MaxMessage {
		p.batch = append(p.batch, f...)
		return
	}
	p.flush()
	p.message(2, f)
}

func (p *rawPeer) flush() {
	if len(p.batch) > 0 {
		p.message(2, p.batch)
		p.batch = nil
	}
}

func (p *rawPeer) send(typ wire.Type, stream uint32, m proto.Message) {
	payload, err := proto.Marshal(m)
	if err == nil {
		p.frame(typ, 0, stream, 0, payload)
	}
}

// read takes what comes, while it is not paused.
func (p *rawPeer) read() {
	for {
		p.mu.Lock()
		for p.paused {
			p.cond.Wait()
		}
		p.mu.Unlock()
		var head [2]byte
		if _, err := io.ReadFull(p.br, head[:]); err != nil {
			return
		}
		size := uint64(head[1] & 0x7f)
		if size >= 126 {
			long := make([]byte, 2+6*(size-126))
			if _, err := io.ReadFull(p.br, long); err != nil {
				return
			}
			size = binary.BigEndian.Uint64(append(make([]byte, 8-len(long)), long...))
		}
		var mask [4]byte
		if head[1]&0x80 != 0 {
			if _, err := io.ReadFull(p.br, mask[:]); err != nil {
				return
			}
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(p.br, payload); err != nil {
			return
		}
		for i := range payload {
			payload[i] ^= mask[i%4]
		}
		if head[0] == 0x82 {
			p.look(payload)
		}
	}
}

// look notes what is said on the session.
func (p *rawPeer) look(message []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(message) > 0 {
		h, payload, rest, err := wire.Next(message)
		if err != nil {
			return
		}
		message = rest
		switch h.Type {
		case wire.TypeHeartbeat:
			var hb wire.Heartbeat
			_ = proto.Unmarshal(payload, &hb)
			p.beat = hb.Id
		case wire.TypeHeartbeatAck:
			p.acks++
		case wire.TypeReady, wire.TypeReadyAck:
			p.ready++
		}
	}
}

func (p *rawPeer) pause(paused bool) {
	p.mu.Lock()
	p.paused = paused
	p.cond.Broadcast()
	p.mu.Unlock()
}

func (p *rawPeer) lastBeat() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beat
}

func (p *rawPeer) ackCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acks
}

func (p *rawPeer) close() {
	p.pause(false)
	_ = p.conn.Close()
	p.reading.Wait()
}

// watchdog panics with every goroutine's stack when one execution takes long: real time, whatever the bubble's is.
func watchdog() (stop func() bool) {
	return time.AfterFunc(30*time.Second, func() {
		buf := make([]byte, 1<<20)
		panic("stuck:\n" + string(buf[:runtime.Stack(buf, true)]))
	}).Stop
}

// script is what a fuzzer chose: a source of small decisions, which ends.
type script struct{ data []byte }

func (s *script) more() bool { return len(s.data) > 0 }

func (s *script) byte() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

// pick is a number below n.
func (s *script) pick(n int) int { return int(s.byte()) % n }

// size is a length: mostly small, sometimes at a limit.
func (s *script) size() int {
	sizes := [...]int{0, 1, 5, 100, 1000, 4096, quantum, wire.MaxHead, wire.MaxHead + 1, wire.MaxPayload - 1, wire.MaxPayload, wire.MaxPayload + 1}
	return sizes[s.pick(len(sizes))]
}

// bytes is a payload: of the script's own bytes, or of zeros of a size.
func (s *script) bytes() []byte {
	b := s.byte()
	if b&1 == 0 {
		return make([]byte, s.size())
	}
	n := min(int(b>>1)%24, len(s.data))
	out := s.data[:n]
	s.data = s.data[n:]
	return out
}

// skew is how far a sequence number is off: mostly not at all.
func (s *script) skew() uint32 {
	if b := s.byte(); b >= 250 {
		return uint32(b - 250)
	}
	return 0
}
