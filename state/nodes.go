package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"iop/execution"
)

// Why a Node may not have a name.
var (
	// ErrNodeTaken says that the name belongs to another join token that is still valid.
	ErrNodeTaken = errors.New("the node name belongs to another join token")
	// ErrWrongNode says that the join token is for another name.
	ErrWrongNode = errors.New("the join token is for another node name")
	// ErrNodeReserved says that a valid join token is bound to the name, and the one presented is bound to none.
	ErrNodeReserved = errors.New("the node name is reserved for the join token that is bound to it")
	// ErrTooManyNodes says that the name is free, and the token has as many names as it may.
	ErrTooManyNodes = errors.New("the join token has reached its limit of node names")
)

// ClaimNode gives a Node's name to the join token, if it is free, the token's own already, or held by a token that is
// revoked or expired. A token that is bound to a name reserves it while it is valid: no unbound token gets the name then,
// not even the one that holds it, and a bound one takes it over. Several tokens may be bound to one name, so that a token
// can be exchanged without a gap. It decides in one atomic step, so that of two tokens only one gets a name. Otherwise
// the error is ErrNodeTaken, ErrWrongNode, ErrNodeReserved, ErrTooManyNodes, or what VerifyJoinToken would say.
func (s *Store) ClaimNode(ctx context.Context, token JoinTokenID, node execution.NodeID) error {
	if err := s.claimNode(ctx, token, node, nil); err != nil {
		return fmt.Errorf("claim node %q: %w", node, err)
	}
	return nil
}

// errTried rolls a claim back that was only tried.
var errTried = errors.New("tried")

// TryNode returns what ClaimNode would return now, and changes nothing.
func (s *Store) TryNode(ctx context.Context, token JoinTokenID, node execution.NodeID) error {
	if err := s.claimNode(ctx, token, node, errTried); !errors.Is(err, errTried) {
		return fmt.Errorf("try node %q: %w", node, err)
	}
	return nil
}

// claimNode claims the name, unless instead is an error: a claim that succeeds is then rolled back, and instead returned.
func (s *Store) claimNode(ctx context.Context, token JoinTokenID, node execution.NodeID, instead error) error {
	if err := node.Validate(); err != nil {
		return err
	}
	now := time.Now()
	err := s.db.locked(ctx, func(tx *sql.Tx) error {
		claimed, err := queryOne(ctx, tx, scanOne[int64], claimNode, string(node), string(token), millis(now), millis(now.Add(-nameMemory)))
		switch {
		case err != nil:
			return err
		case instead != nil:
			return instead
		case claimed != millis(now):
			return nil
		}
		return noteTokenUsed(ctx, tx, token, node, now)
	})
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	// It is refused; this only finds out why.
	record, err := s.joinTokenRecord(ctx, token)
	if err != nil {
		return err
	}
	if err := record.token.usable(now); err != nil {
		return err
	}
	if record.token.Node != "" && record.token.Node != node {
		return ErrWrongNode
	}
	reserved, err := queryOne(ctx, s.db.read, scanOne[int64], queryNodeReserved, string(node), millis(now))
	switch {
	case err != nil:
		return err
	case record.token.Node == "" && reserved != 0:
		return ErrNodeReserved
	}
	_, err = queryOne(ctx, s.db.read, scanOne[string], queryNodeHolder, string(node), millis(now))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return ErrTooManyNodes
	case err != nil:
		return err
	}
	return ErrNodeTaken
}

// tokenUseEvery is how often a join token's use for one name is noted. Two Nodes that take a name from each other by turns
// must not fill the audit.
const tokenUseEvery = time.Hour

// noteTokenUsed notes that a Node got its name by a token that did not have it.
func noteTokenUsed(ctx context.Context, tx *sql.Tx, token JoinTokenID, node execution.NodeID, now time.Time) error {
	_, err := queryOne(ctx, tx, scanOne[string], queryTokenUsed, string(token), string(node), millis(now.Add(-tokenUseEvery)))
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return addAudit(ctx, tx, AuditEntry{
		At: now, Actor: ActorNode, Action: AuditJoinTokenUsed, Outcome: AuditDone, JoinToken: token, Node: node,
	})
}

// nameMemory is how long a name counts against its token's bound after it was last used to join. Machines with names that
// are used once, such as containers, must not use a token up for good.
const nameMemory = 30 * 24 * time.Hour

// maxSeenAhead is how far above the last known generation a Node's word counts. Its word matters when the state was
// lost or restored from a backup: an honest Node is then ahead by the sessions since, and reconnecting once a second it
// takes twelve days to be ahead by this much. Anything above is a fault or a lie, and is ignored rather than cut down
// to the limit, so that a liar moves the number no further than an honest Node does. A lie below it costs nothing: it
// is the liar's own numbers that it uses up, and 2^43 such lies fit in.
const maxSeenAhead = 1 << 20

// NextGeneration returns a generation for the Node that is greater than any it was given before and, within bounds,
// than the one that it says it has seen. It is on disk before it is returned: no crash brings a number back. A number
// may be lost, when the context ends at the wrong moment.
func (s *Store) NextGeneration(ctx context.Context, node execution.NodeID, seen execution.Generation) (execution.Generation, error) {
	if err := node.Validate(); err != nil {
		return 0, fmt.Errorf("next generation: %w", err)
	}
	if seen > math.MaxInt64-maxSeenAhead { // not a number that a column holds, so no honest one
		seen = 0
	}
	before := s.given.latest(node)
	next, err := queryOne(ctx, s.db.write, scanOne[int64], nextGeneration, string(node), int64(seen), int64(maxSeenAhead))
	if errors.Is(err, sql.ErrNoRows) {
		err = errors.New("its numbers are used up")
	}
	if err != nil {
		return 0, fmt.Errorf("next generation of node %q: %w", node, err)
	}
	if next <= before {
		s.db.guard.condemn(FaultReplaced, fmt.Sprintf("generation %d of node %q was given before: it is an older copy of the state", next, node))
		return 0, fmt.Errorf("next generation of node %q: %w", node, s.db.guard.allow(false))
	}
	s.given.note(node, next)
	return execution.Generation(next), nil
}

// generations are the last ones that this Store gave to Nodes. They never fall while nobody puts an older copy of the database
// in the place of the one that is open. The zero value is ready.
type generations struct {
	mu   sync.Mutex
	last map[execution.NodeID]int64
}

// latest returns the highest that a Node was given, 0 if none is known.
func (g *generations) latest(node execution.NodeID) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last[node]
}

// note notes what a Node was given. Of two at once the lower may come second.
func (g *generations) note(node execution.NodeID, given int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil || len(g.last) >= maxLearned {
		g.last = make(map[execution.NodeID]int64)
	}
	g.last[node] = max(g.last[node], given)
}
