//go:build spire

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// spireLife is how long SPIRE's certificates are valid here. Its agent asks for the next one when half of that is over.
const spireLife = 60 * time.Second

// spire is a SPIRE server and an agent, in a directory whose path is short enough for their sockets.
type spire struct {
	t        *testing.T
	dir      string
	programs string // the directory of spire-server and spire-agent
}

func newSpire(t *testing.T) *spire {
	t.Helper()
	programs, err := filepath.Abs("../.cache/spire")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "iop-spire-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &spire{t, dir, programs}
	_, port, _ := strings.Cut(freePort(t), ":")
	s.write("server.conf", `
server {
	bind_address = "127.0.0.1"
	bind_port = "`+port+`"
	socket_path = "`+s.path("server.sock")+`"
	trust_domain = "`+managedDomain+`"
	data_dir = "`+s.path("server")+`"
	ca_ttl = "24h"
}
plugins {
	DataStore "sql" { plugin_data { database_type = "sqlite3" connection_string = "`+s.path("server.db")+`" } }
	NodeAttestor "join_token" { plugin_data {} }
	KeyManager "memory" { plugin_data {} }
}
`)
	s.write("agent.conf", `
agent {
	data_dir = "`+s.path("agent")+`"
	server_address = "127.0.0.1"
	server_port = "`+port+`"
	socket_path = "`+s.path("agent.sock")+`"
	trust_domain = "`+managedDomain+`"
	insecure_bootstrap = true
}
plugins {
	NodeAttestor "join_token" { plugin_data {} }
	KeyManager "memory" { plugin_data {} }
	WorkloadAttestor "unix" { plugin_data {} }
}
`)
	s.start()
	return s
}

func (s *spire) path(name string) string { return filepath.Join(s.dir, name) }

func (s *spire) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// start starts both, and lets the agent in by a join token.
func (s *spire) start() {
	s.t.Helper()
	startCommand(s.t, "spire-server", nil, exec.Command(filepath.Join(s.programs, "spire-server"), "run", "-config", s.path("server.conf")))
	eventually(s.t, 60*time.Second, "the SPIRE server answers", func() bool { _, err := s.try("healthcheck"); return err == nil })
	_, token, ok := strings.Cut(s.server("token", "generate", "-spiffeID", s.id("agent")), "Token: ")
	if !ok {
		s.t.Fatal("no join token")
	}
	startCommand(s.t, "spire-agent", nil, exec.Command(filepath.Join(s.programs, "spire-agent"), "run", "-config", s.path("agent.conf"),
		"-joinToken", strings.TrimSpace(token)))
}

func (s *spire) id(path string) string { return "spiffe://" + managedDomain + "/" + path }

func (s *spire) try(args ...string) (string, error) {
	args = append(args, "-socketPath", s.path("server.sock"))
	out, err := exec.Command(filepath.Join(s.programs, "spire-server"), args...).CombinedOutput()
	return string(out), err
}

// server runs a command of the server's that must succeed.
func (s *spire) server(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("spire-server %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// register gives an identity to the processes of this user.
func (s *spire) register(path string) {
	s.t.Helper()
	s.server("entry", "create", "-parentID", s.id("agent"), "-spiffeID", s.id(path), "-selector", fmt.Sprintf("unix:uid:%d", os.Getuid()),
		"-x509SVIDTTL", fmt.Sprint(int(spireLife.Seconds())))
}

// TestManagedSpire: Edge and Node have their identities from SPIRE. It renews both twice under load, with no cut stream and
// no failed run. Both processes are the same user's, so each is offered both identities, and takes its own.
func TestManagedSpire(t *testing.T) {
	s := newSpire(t)
	s.register("edge/main")
	s.register("node/gpu-1")
	m := prepareManaged(t, managedRoutes())
	socket := "unix://" + s.path("agent.sock")
	m.startWithAgents(t, socket, socket)
	l := newManagedLoad(m, 3, 3, 1000)
	generation := m.node("gpu-1").generation()
	began := time.Now()
	for time.Since(began) < spireLife+10*time.Second { // both certificates of the beginning have ended then
		eventually(t, spireLife, "SPIRE's next certificate is in use", func() bool { return m.node("gpu-1").generation() > generation })
		generation = m.node("gpu-1").generation()
		l.goesOn(t)
	}
	l.end(t, 60*time.Second)
	m.quiet()
	m.noFalseAlarm()
}
