package tunnel

import (
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// Keeper holds what one session of a Node needs to open its leases: a private key of that session alone, the Edge's
// keys, its time, the minimum revisions, the withdrawals. What these mean is not the tunnel's matter.
//
// Recipient, Registered, EdgeTime, Refreshed and Revoked are called one at a time, in the order of what the Edge sent.
// Each must return at once and not call the Supervisor.
type Keeper interface {
	// Recipient returns the public key (JWK, JSON; at most wire.MaxKey bytes) that the Edge seals the session's leases
	// to. Called once, before Registered.
	Recipient() []byte
	// Registered is told once what the Edge answered, before READY is sent; a config that has more than a page goes on in
	// Refreshed, before the first run. An error means that this Node does not want the Edge: the session ends there, the
	// Edge is told the error's text, and the Supervisor tries again later.
	Registered(Registration) error
	// EdgeTime is told the Edge's time at READY_ACK and HEARTBEAT_ACK: what they answer was sent at sent, they came at
	// received, both of time.Now.
	EdgeTime(edge, sent, received time.Time)
	// Refreshed is called before the Edge's REFRESH is acknowledged. config is never nil; it raises minimum revisions,
	// those that it does not name stay. keys replace the verification keys; nil leaves them as they are. An error ends
	// the session: it must not go on by what is out of date.
	Refreshed(config *wire.EdgeConfig, keys [][]byte) error
	// Revoked is called before the Edge's REVOKE is acknowledged. An error ends the session: leases that can't be
	// withdrawn must not live.
	Revoked(*wire.Revoke) error
	// Ended is called exactly once, as soon as the session has ended or did not come about, perhaps while another method
	// runs. The private key is for nothing any more. It must return at once.
	Ended()
}

// Registration is what the Edge answered to REGISTER.
type Registration struct {
	Generation execution.Generation
	EdgeID     string    // as the Edge says; what its certificate proves is in TLS
	EdgeTime   time.Time // the Edge's clock when it answered; zero if it did not say
	// REGISTER was sent and its answer came, both of time.Now.
	Sent, Received time.Time
	Keys           [][]byte         // the Edge's verification keys (JWK, JSON)
	Config         *wire.EdgeConfig // never nil
	// TLS is the connection's; nil without TLS.
	TLS *tls.ConnectionState
	// Close ends this session now, its runs too, and tells the Edge why: its certificate is trusted no longer. The
	// Supervisor dials again. Any goroutine may call it at any time, but not from a method of the Keeper.
	Close func(message string)
}

// checkKeys holds verification keys to the contract's limits.
func checkKeys(keys [][]byte) error {
	if len(keys) > wire.MaxKeys {
		return fmt.Errorf("%d verification keys, over %d", len(keys), wire.MaxKeys)
	}
	for _, k := range keys {
		if len(k) == 0 || len(k) > wire.MaxKey {
			return fmt.Errorf("a verification key of %d bytes, not 1 to %d", len(k), wire.MaxKey)
		}
	}
	return nil
}

// introduce tells the Keeper, if there is one, what the Edge answered, and the Edge if the Keeper does not want it.
func (n *nodeSession) introduce(r Registration) error {
	if n.keeper == nil {
		return nil
	}
	r.Close = func(message string) {
		n.link.fail(&EndError{Code: goodbyeUntrusted, Message: message, Run: execution.CodeSessionLost})
	}
	err := n.keeper.Registered(r)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("this Node rejects the Edge: %w", err)
	n.sayGoodbye(goodbyeRefused, err.Error())
	return err
}

// configFrameLocked takes the Edge's config and keys.
func (n *nodeSession) configFrameLocked(msg *wire.Refresh) error {
	ack := &wire.Refresh{Id: msg.Id, Kind: &wire.Refresh_Ack{Ack: &wire.RefreshAck{}}}
	if n.keeper == nil {
		return n.link.answerLocked(wire.TypeRefresh, ack)
	}
	if err := checkKeys(msg.LeaseVerificationKeys); err != nil {
		return protocolError("REFRESH: %w", err)
	}
	config := msg.GetEdge()
	if config == nil {
		config = &wire.EdgeConfig{}
	}
	n.keepLocked(wire.TypeRefresh, wire.TypeRefresh, ack, func() error { return n.keeper.Refreshed(config, msg.LeaseVerificationKeys) })
	return nil
}

// keepLocked lets the Keeper take a frame once the lock is released, then answers it.
func (n *nodeSession) keepLocked(asked, answered wire.Type, answer proto.Message, take func() error) {
	l := &n.link
	l.after = append(l.after, func() {
		err := take()
		if err == nil {
			l.mu.Lock()
			if l.end == nil {
				err = l.answerLocked(answered, answer)
			}
			l.mu.Unlock()
		}
		if err != nil {
			l.fail(&EndError{Code: goodbyeProtocol, Message: asked.String() + ": " + err.Error(), Run: execution.CodeSessionLost})
		}
	})
}

// timeLocked passes the Edge's time on, if it said it.
func (n *nodeSession) timeLocked(unixMs int64, sent time.Time) {
	if n.keeper == nil || unixMs == 0 || sent.IsZero() {
		return
	}
	received := n.link.now()
	n.link.after = append(n.link.after, func() { n.keeper.EdgeTime(time.UnixMilli(unixMs), sent, received) })
}
