package state

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"iop/execution"
)

// NodeMemory is what is remembered of a Node for longer than an Edge's process lives.
type NodeMemory struct {
	Node    execution.NodeID
	Seen    time.Time // when it was last known to be connected
	Cause   string    // why its last session ended; empty: it was connected
	Drained string    // the boot id of the process that an operator drained; empty: none
	// Models are the names that it offered last. For RememberNodes nil means those of before. Names beyond the bounds of
	// one Node are left out.
	Models []string
}

// Bounds of what is remembered. Nodes choose names, so that each of these stops one that has ever new ones.
const (
	// NodeMemoryLife is how long a Node is remembered that does not connect.
	NodeMemoryLife = 30 * 24 * time.Hour

	maxNodesSeen     = 4096     // those not seen for longest are forgotten
	maxNodeModels    = 64 << 10 // bytes of the names of one Node's models, in JSON
	maxNodeModelsAll = 4 << 20  // of all Nodes' together; the Nodes with most lose theirs
	noteNodesAtOnce  = 200      // in one transaction, so that no generation waits long behind it
)

// RememberNodes notes what is known of Nodes in place of what was, and forgets what exceeds the bounds.
func (s *Store) RememberNodes(ctx context.Context, nodes []NodeMemory) error {
	for batch := range slices.Chunk(nodes, noteNodesAtOnce) {
		err := s.db.locked(ctx, func(tx *sql.Tx) error {
			if err := eachRow(ctx, len(batch), func(ctx context.Context, i int) error { return noteNode(ctx, tx, &batch[i]) }); err != nil {
				return err
			}
			return boundNodesSeen(ctx, tx)
		})
		if err != nil {
			return fmt.Errorf("remember nodes: %w", err)
		}
	}
	return nil
}

func noteNode(ctx context.Context, tx *sql.Tx, n *NodeMemory) error {
	models, size := modelsColumn(n.Models)
	query := putNodeSeen
	if n.Models == nil {
		query = touchNodeSeen
	}
	_, err := tx.ExecContext(ctx, query, string(n.Node), millis(n.Seen), usageText(n.Cause), usageText(n.Drained), models, size)
	return err
}

// modelsColumn is a JSON array of as many of the names as may be remembered of one Node.
func modelsColumn(names []string) (column string, size int64) {
	text := []byte{'['}
	for _, name := range names {
		quoted, err := json.Marshal(name)
		if err != nil || len(text)+len(quoted)+2 > maxNodeModels {
			continue // a shorter one may still fit
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(text, quoted...)
	}
	return string(append(text, ']')), int64(len(text) + 1)
}

func boundNodesSeen(ctx context.Context, tx *sql.Tx) error {
	_, old := tx.ExecContext(ctx, pruneNodesSeen, millis(time.Now().Add(-NodeMemoryLife)))
	_, many := tx.ExecContext(ctx, boundNodesSeenCount, int64(maxNodesSeen))
	_, large := tx.ExecContext(ctx, boundNodesSeenModels, int64(maxNodeModelsAll))
	return errors.Join(old, many, large)
}

// RememberedNodes returns what is remembered, the Node seen last first.
func (s *Store) RememberedNodes(ctx context.Context) ([]NodeMemory, error) {
	nodes, err := queryAll(ctx, s.db.read, scanNodeSeen, queryNodesSeen, millis(time.Now().Add(-NodeMemoryLife)))
	if err != nil {
		return nil, fmt.Errorf("remembered nodes: %w", err)
	}
	return nodes, nil
}

// ForgetNode forgets a Node. One that is not remembered is no error.
func (s *Store) ForgetNode(ctx context.Context, node execution.NodeID) error {
	if _, err := s.db.write.ExecContext(ctx, deleteNodeSeen, string(node)); err != nil {
		return fmt.Errorf("forget node %q: %w", node, err)
	}
	return nil
}

func scanNodeSeen(rows *sql.Rows) (n NodeMemory, err error) {
	var seen int64
	var models string
	if err := rows.Scan(&n.Node, &seen, &n.Cause, &n.Drained, &models); err != nil {
		return n, err
	}
	n.Seen = fromMillis(seen)
	if err := json.Unmarshal([]byte(models), &n.Models); err != nil {
		return n, fmt.Errorf("models of node %q: %w", n.Node, err)
	}
	return n, nil
}
