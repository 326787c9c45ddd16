package admin

import (
	"net/http"

	"iop/execution"
	"iop/state"
)

func (a *api) status(*http.Request) (any, error) { return a.edge.Status(), nil }

func (a *api) nodes(*http.Request) (any, error) { return list[Node]{a.edge.Nodes()}, nil }

func (a *api) oneNode(r *http.Request) (any, error) {
	id := nodeID(r)
	for _, node := range a.edge.Nodes() {
		if node.Node == id {
			return node, nil
		}
	}
	return nil, &failure{http.StatusNotFound, "node_not_found", "node", "no Node with this name was connected in the last 30 days"}
}

func (a *api) drainNode(r *http.Request) (any, error) {
	return a.onNode(r, "drain node", state.AuditNodeDrained, a.edge.DrainNode)
}

func (a *api) resumeNode(r *http.Request) (any, error) {
	return a.onNode(r, "resume node", state.AuditNodeResumed, a.edge.ResumeNode)
}

func (a *api) forgetNode(r *http.Request) (any, error) {
	node := nodeID(r)
	if err := a.edge.ForgetNode(r.Context(), node); err != nil {
		return nil, err
	}
	a.done(r, "forget node", "node", node)
	a.note(r.Context(), state.AuditEntry{Action: state.AuditNodeForgotten, Node: node})
	return map[string]any{"node": node}, nil
}

func (a *api) onNode(r *http.Request, action string, audit state.AuditAction, do func(execution.NodeID) error) (any, error) {
	node := nodeID(r)
	if err := do(node); err != nil {
		return nil, &failure{http.StatusNotFound, "node_not_found", "node", err.Error()}
	}
	a.done(r, action, "node", node)
	a.note(r.Context(), state.AuditEntry{Action: audit, Node: node})
	return map[string]any{"node": node}, nil
}

func (a *api) liveRoutes(*http.Request) (any, error) { return list[Route]{a.edge.Routes()}, nil }

func (a *api) queues(r *http.Request) (any, error) {
	names, err := readKeyNames(r.Context(), a.store)
	if err != nil {
		return nil, err
	}
	queues := a.edge.Queues()
	for i := range queues {
		for j := range queues[i].Principals {
			p := &queues[i].Principals[j]
			p.Name = names.principal(p.Principal)
		}
	}
	return list[Queue]{queues}, nil
}
