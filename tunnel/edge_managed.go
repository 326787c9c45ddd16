package tunnel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/tunnel/wire"
)

// maxRevocations bounds the REVOKEs that a Node has not acknowledged.
const maxRevocations = 1024

// wallTick is how often an end that was set for a time of day looks at the clock: a machine that was suspended has
// slept through its timers.
const wallTick = time.Minute

// configSender keeps what the Edge tells a Node of its config and keys: one telling at a time is under way, however
// often they change. Guarded by link.mu.
type configSender struct {
	busy    bool         // being read, or sent and not acknowledged
	unacked uint64       // the id of its last page; 0 while it is being read
	lastID  uint64       // of any page
	now     *configReply // of what is under way; or nil
	next    *configReply // of what follows that; or nil: nothing does
}

// configReply is what became of one telling.
type configReply struct {
	done chan struct{} // closed when it is acknowledged or can't be sent
	err  error         // valid then
}

// Recipient returns the public key (JWK, JSON) that the session's leases are to be sealed to; nil if the Node has none.
// The tunnel has checked its length alone.
func (s *NodeSession) Recipient() []byte {
	if len(s.register.GetRecipientPublicKey()) == 0 {
		return nil
	}
	return s.register.GetRecipientPublicKey()
}

// Refresh reads AcceptorConfig's Config and VerificationKeys and tells them to the Node, then waits for its
// acknowledgement: from then on it works by them. It may be called from Directory.Register on. If ctx ends first the
// Node is told nevertheless. Calls while one telling is under way lead to one more, for all of them.
func (s *NodeSession) Refresh(ctx context.Context) error {
	l := &s.link
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return ErrSessionClosed
	}
	reply, begin := s.config.askLocked()
	l.mu.Unlock()
	if begin {
		s.sendConfig()
	}
	select {
	case <-reply.done:
		return reply.err
	case <-l.done:
		return ErrSessionClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// askLocked returns the reply to wait for, and whether the caller is to send.
func (c *configSender) askLocked() (reply *configReply, begin bool) {
	if !c.busy {
		c.busy = true
		c.now = &configReply{done: make(chan struct{})}
		return c.now, true
	}
	if c.next == nil {
		c.next = &configReply{done: make(chan struct{})}
	}
	return c.next, false
}

// finishLocked ends the telling under way. It reports whether another is to be sent.
func (c *configSender) finishLocked(err error) (again bool) {
	c.now.err = err
	close(c.now.done)
	c.now, c.next, c.unacked = c.next, nil, 0
	c.busy = c.now != nil
	return c.busy
}

// sendConfig queues the Edge's config in pages, the keys on the first.
func (s *NodeSession) sendConfig() {
	for {
		pages, keys, err := s.readConfig()
		l := &s.link
		l.mu.Lock()
		if err == nil {
			for i, page := range pages {
				s.config.lastID++
				msg := &wire.Refresh{Id: s.config.lastID, Kind: &wire.Refresh_Edge{Edge: page}}
				if i == 0 {
					msg.LeaseVerificationKeys = keys
				}
				l.urgentLocked(wire.TypeRefresh, nil, msg)
			}
			s.config.unacked = s.config.lastID
			l.mu.Unlock()
			return
		}
		again := s.config.finishLocked(err)
		l.mu.Unlock()
		l.log.Error("tunnel: could not send the Edge's config", "err", err)
		if !again {
			return
		}
	}
}

// configAckLocked takes the Node's acknowledgement of a page.
func (s *NodeSession) configAckLocked(id uint64) {
	if s.config.unacked == 0 || id != s.config.unacked {
		return
	}
	if s.config.finishLocked(nil) {
		s.link.after = append(s.link.after, s.sendConfig)
	}
}

// readConfig asks the Edge for what its Nodes work by. There is at least one page.
func (s *NodeSession) readConfig() (pages []*wire.EdgeConfig, keys [][]byte, err error) {
	cfg := &s.acceptor.cfg
	config := &wire.EdgeConfig{}
	if cfg.Config != nil {
		if c := cfg.Config(s.node); c != nil {
			config = c
		}
	}
	if cfg.VerificationKeys != nil {
		keys = cfg.VerificationKeys()
	}
	if err := checkKeys(keys); err != nil {
		return nil, nil, err
	}
	for slot := range config.MinimumRevisions {
		if !usableName(slot) {
			return nil, nil, errors.New("a slot without a usable name")
		}
	}
	return configPages(config), keys, nil
}

// configPageBytes is what a page of a config may take: the keys fit beside it.
const configPageBytes = wire.MaxPayload - wire.MaxKeys*(wire.MaxKey+4) - 4<<10

// configPages divides a config: since minimum revisions only rise, each page says something that is true by itself.
func configPages(config *wire.EdgeConfig) []*wire.EdgeConfig {
	page := &wire.EdgeConfig{Revision: config.Revision}
	pages := []*wire.EdgeConfig{page}
	left := configPageBytes
	for _, slot := range slices.Sorted(maps.Keys(config.MinimumRevisions)) {
		one := map[string]uint64{slot: config.MinimumRevisions[slot]}
		size := proto.Size(&wire.EdgeConfig{MinimumRevisions: one})
		if left -= size; left < 0 {
			page = &wire.EdgeConfig{Revision: config.Revision}
			pages = append(pages, page)
			left = configPageBytes - size
		}
		if page.MinimumRevisions == nil {
			page.MinimumRevisions = make(map[string]uint64)
		}
		page.MinimumRevisions[slot] = one[slot]
	}
	return pages
}

// tellMore sends what REGISTERED had no room for: before READY_ACK can go out.
func (s *NodeSession) tellMore() {
	s.link.mu.Lock()
	_, begin := s.config.askLocked()
	s.link.mu.Unlock()
	if begin {
		s.sendConfig()
	}
}

// Revoke withdraws leases from the Node and waits for its acknowledgement: from then on it opens none that r matches.
// r's Id is set by Revoke. If ctx ends first the Node is told nevertheless, if it lives: whoever must be sure that a
// lease is dead ends the session, whose key dies with it.
func (s *NodeSession) Revoke(ctx context.Context, r *wire.Revoke) error {
	asked := proto.CloneOf(r)
	asked.Id = 1<<64 - 1
	if proto.Size(asked) > wire.MaxPayload {
		return fmt.Errorf("a revocation of over %d bytes", wire.MaxPayload)
	}
	l := &s.link
	l.mu.Lock()
	switch {
	case l.end != nil:
		l.mu.Unlock()
		return ErrSessionClosed
	case len(s.revokes) >= maxRevocations:
		l.mu.Unlock()
		return errors.New("the Node has not acknowledged earlier revocations")
	}
	s.lastRevoke++
	asked.Id = s.lastRevoke
	done := make(chan struct{})
	if s.revokes == nil {
		s.revokes = make(map[uint64]chan struct{})
	}
	s.revokes[asked.Id] = done
	l.urgentLocked(wire.TypeRevoke, nil, asked)
	l.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-l.done:
		return ErrSessionClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *NodeSession) revokeAckLocked(payload []byte) error {
	var ack wire.RevokeAck
	if err := proto.Unmarshal(payload, &ack); err != nil {
		return protocolError("REVOKE_ACK: %w", err)
	}
	if ack.Id > s.lastRevoke {
		return protocolError("REVOKE_ACK %d was never requested", ack.Id)
	}
	if done, ok := s.revokes[ack.Id]; ok {
		delete(s.revokes, ack.Id)
		close(done)
	}
	return nil
}

// EndAt ends the session at a time of day, at once if that has passed, and tells the Node why as Refuse does; its runs
// fail as session_lost. Another call replaces the time and the reason; the zero time takes them back. A session whose
// Identity has a NotAfter begins with that, as identity_expired.
func (s *NodeSession) EndAt(at time.Time, r *Refusal) {
	l := &s.link
	l.mu.Lock()
	defer l.unlock()
	if s.endTimer != nil {
		s.endTimer.Stop()
		s.endTimer = nil
	}
	if at.IsZero() || l.end != nil {
		return
	}
	at = at.Round(0) // by the wall clock
	var timer *time.Timer
	timer = time.AfterFunc(min(max(time.Until(at), 0), wallTick), func() {
		l.mu.Lock()
		if s.endTimer != timer {
			l.mu.Unlock()
			return // replaced meanwhile
		}
		if left := time.Until(at); left > 0 {
			timer.Reset(min(left, wallTick))
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		s.Refuse(r)
	})
	s.endTimer = timer
}

// expired is why a session ends at its certificate's NotAfter.
func expired() *Refusal {
	return &Refusal{Code: "identity_expired", Message: "the Node's certificate has expired"}
}
