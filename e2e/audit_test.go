package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os/user"
	"slices"
	"strings"
	"testing"
)

// auditLine is an entry as "iop audit --json" prints it.
type auditLine struct {
	Actor, Action, Outcome, Subject, Source, Session, Node, Key, Detail string
	JoinToken                                                           string `json:"join_token"`
}

func (s *stack) audit(args ...string) (lines []auditLine) {
	s.t.Helper()
	var list struct{ Data []auditLine }
	s.json(&list, append([]string{"audit", "--json", "--limit", "0"}, args...)...)
	slices.Reverse(list.Data)
	return list.Data
}

// TestAuditSaysWho goes through what operators do in a day, by commands with an Edge and without one, by the console, by a
// file and by a Node, and finds each of it in the audit with who did it and from where, and nothing secret.
func TestAuditSaysWho(t *testing.T) {
	const routes = "routes:\n  - model: chat\n    targets: [{model: sim-small}]\n"
	s := newRouted(t, routes)
	sim := s.startSim()
	s.startNode("node-1", "--provider", "sim="+sim.url)
	s.online("node-1", patience)
	var key, other struct{ ID, Key string }
	s.json(&key, "key", "create", "--name", "alice", "--rpm", "60", "--json")
	iop(t, s.env, "key", "update", "alice", "--rpm", "90")
	iop(t, s.env, "drain", "node-1")
	iop(t, s.env, "drain", "node-1", "--resume")
	writeRoutes(t, s.file, strings.Replace(routes, "chat", "talk", 1))
	eventually(t, patience, "the file is in force", func() bool {
		return slices.ContainsFunc(s.audit("--action", "routes_applied"), func(l auditLine) bool { return l.Actor == "edge" })
	})
	// The console, and somebody who has not its token.
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, token := range []string{"adm-iop_wrong", s.adminToken()} {
		res, err := client.PostForm(s.admin+"/admin/sign-in", url.Values{"token": {token}})
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if cookies := res.Cookies(); len(cookies) > 0 {
			form, err := http.NewRequest("POST", s.admin+"/admin/keys/alice/revoke", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			form.AddCookie(cookies[0])
			res, err := client.Do(form)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
		}
	}
	if err := s.edge.stop(patience); err != nil {
		t.Fatal(err)
	}
	s.json(&other, "key", "create", "--name", "alice", "--json") // on the state itself
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}

	all := s.audit()
	const local = "127.0.0.1"
	for _, want := range []auditLine{
		{Actor: "command", Source: who.Username, Action: "key_created", Subject: "e2e"},
		{Actor: "node", Source: local, Action: "join_token_used", Node: "node-1"},
		{Actor: "admin", Source: local, Action: "key_created", Subject: "alice", Key: key.ID, Detail: "rpm 0 -> 60"},
		{Actor: "admin", Source: local, Action: "key_updated", Subject: "alice", Key: key.ID, Detail: "rpm 60 -> 90"},
		{Actor: "admin", Source: local, Action: "node_drained", Node: "node-1"},
		{Actor: "admin", Source: local, Action: "node_resumed", Node: "node-1"},
		{Actor: "edge", Action: "routes_applied"},
		{Actor: "unknown", Source: local, Action: "sign_in_refused"},
		{Actor: "console", Source: local, Action: "signed_in"},
		{Actor: "console", Source: local, Action: "key_revoked", Subject: "alice", Key: key.ID},
		{Actor: "command", Source: who.Username, Action: "key_created", Subject: "alice", Key: other.ID},
	} {
		at := slices.IndexFunc(all, func(l auditLine) bool {
			return l.Actor == want.Actor && l.Source == want.Source && l.Action == want.Action && l.Node == want.Node && l.Detail == want.Detail &&
				(want.Subject == "" || l.Subject == want.Subject) && (want.Key == "" || l.Key == want.Key) && (l.Session != "") == (want.Actor == "console")
		})
		if at < 0 {
			t.Fatalf("there is no %+v among\n%+v", want, all)
		}
		all = all[at+1:] // in this order
	}
	if got := s.audit("--key", "alice"); len(got) != 1 || got[0].Key != other.ID {
		t.Errorf("of the live alice: %+v", got)
	}
	if got := s.audit("--key", key.ID); len(got) != 3 {
		t.Errorf("of the first alice: %+v", got)
	}
	text, err := json.Marshal(s.audit())
	if err != nil {
		t.Fatal(err)
	}
	table := iop(t, s.env, "audit", "--limit", "0") + iop(t, s.env, "audit", "--limit", "0", "--csv")
	for _, secret := range []string{key.Key, other.Key, s.key, s.token, s.adminToken()} {
		if strings.Contains(string(text)+table, secret) {
			t.Error("a secret is in the audit")
		}
	}
}
