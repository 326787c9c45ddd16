package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/gateway/admission"
	"iop/gateway/conns"
	"iop/gateway/route"
	"iop/identity"
	"iop/state"
	"iop/tunnel/reach"
)

// doctorPatience bounds each question of a doctor.
const doctorPatience = 10 * time.Second

func newDoctorEdgeCommand() *cobra.Command {
	config, host := newEdgeSettings(), ""
	cmd := &cobra.Command{
		Use:   "edge",
		Short: "Check an Edge: settings, files, state, ports, certificates, and the one that runs",
		Long: `Check an Edge: its settings and the modes of its files, the file of routes, the
state with its disk and its admin token, the ports, the file descriptors that it
may have, the certificates, and, where an Edge runs already with these settings,
what it says of itself.`,
		Example: `  iop doctor edge
  iop doctor edge --listen :443 --tls-cert tls.crt --tls-key tls.key --host edge.example.org
  iop doctor edge --json`,
	}
	s := bindSettings(cmd, edgePrefix, &config, nil)
	cmd.Flags().StringVar(&host, "host", "", "host name that clients use for this Edge; the certificate is checked against it")
	return doctorCommand(cmd, func(ctx context.Context, d *doctor) {
		e := edgeDoctor{d: d, config: &config, host: host}
		d.settingsLoaded(config.load(s))
		e.routes()
		e.state(ctx)
		e.ports(ctx)
		e.descriptors()
		e.certificate()
		e.managed()
		e.serviceReads(os.Geteuid())
		e.running(ctx)
	})
}

// edgeDoctor examines the Edge of some settings.
type edgeDoctor struct {
	d      *doctor
	config *edgeSettings
	host   string

	files []string // of the state; set by state
}

// serviceReads examines, where the doctor's user (euid) is root, whether the Edge's own user can read the files: what root can read
// proves nothing.
func (e *edgeDoctor) serviceReads(euid int) {
	if len(e.files) == 0 {
		return
	}
	service, other := serviceOf(filepath.Dir(e.files[0]), euid)
	if !other {
		return
	}
	c := e.config
	blocked := false
	for _, path := range append([]string{c.TLSCert, c.TLSKey, c.Config, c.MasterKeyFile, c.IdentityCert, c.IdentityKey, c.CA}, e.files...) {
		if path == "" {
			continue
		}
		if absolute, err := filepath.Abs(path); err == nil {
			path = absolute
		}
		at := service.blocks(path)
		if at == "" {
			continue
		}
		blocked = true
		found, do := "can't read "+path, "chown "+service.name+" "+path
		if at != path { // a directory above, which may be everybody's or root's own
			found, do = found+": it can't enter "+at, "move it to a directory that "+service.name+" can enter"
		}
		e.d.fail("service", do, "the user %s, who owns the state and so runs the Edge, %s", service.name, found)
	}
	if !blocked {
		e.d.ok("service", "the user %s, who owns the state, can read all files", service.name)
	}
}

func (e *edgeDoctor) routes() {
	if e.config.Config == "" {
		e.d.ok("routes", "no file: each model that a Node offers is a route")
		return
	}
	table, err := route.Load(e.config.Config, route.Managed(e.config.managed()))
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			e.d.fail("routes", "correct the file; docs/routes.md has every field", "%s", strings.TrimSpace(line))
		}
		return
	}
	if info, err := os.Stat(e.config.Config); err == nil && opened(info.Mode(), 0o022) {
		e.d.warn("routes", "chmod go-w "+e.config.Config, "other users can change %s and so redirect requests", e.config.Config)
	}
	e.d.ok("routes", "%s: %s", e.config.Config, counted(len(table.Routes()), "route"))
}

// state examines the database, its directory and disk, and the secrets beside it.
func (e *edgeDoctor) state(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	found, err := state.Inspect(ctx, e.config.State)
	if found.Path == "" {
		e.d.fail("state", "set IOP_EDGE_STATE, for example sqlite:///var/lib/iop/iop.db", "%s", err)
		return
	}
	if !e.directory(found.Directory()) {
		return
	}
	e.files = []string{found.Path, filepath.Join(found.Directory(), "admin-token"), filepath.Join(found.Directory(), "pepper")}
	switch {
	case errors.Is(err, state.ErrNewer):
		e.d.fail("state", "run that version or a later one", "%s", oneLine(err))
	case errors.Is(err, state.ErrOrphaned):
		e.d.fail("state", "see the message; docs/operations.md explains how to restore", "%s", oneLine(err))
		return
	case errors.Is(err, state.ErrPepper):
		e.d.fail("state", "restore the file from a backup: docs/operations.md; an Edge that runs goes on until it stops", "%s: %s", found.Path, oneLine(err))
	case errors.Is(err, state.ErrDamaged):
		e.d.fail("state", "stop the Edge and restore a backup: docs/operations.md", "%s", oneLine(err))
	case err != nil:
		e.d.fail("state", "check that this user owns the file, and that it is the Edge's database", "%s", oneLine(err))
	case found.Missing:
		e.d.ok("state", "%s does not exist yet: the Edge creates it at its first start", found.Path)
		return
	case found.Schema < found.Known:
		e.d.warn("state", "back it up, then start the Edge, which upgrades it", "%s is of an older iop (schema %d, this one has %d), which does not open it any more then", found.Path, found.Schema, found.Known)
	default:
		e.d.ok("state", "%s opens, schema %d", found.Path, found.Schema)
	}
	switch {
	case err != nil:
	case found.Checked:
		e.d.ok("state", "the database passed its integrity check")
	default:
		e.d.warn("state", "the Edge that runs checks it once a day; with the Edge stopped: sqlite3 "+found.Path+" \"PRAGMA quick_check\"", "the database is too large to check within %s", doctorPatience/2)
	}
	e.adminToken()
}

// Free space of the state's disk.
const (
	littleSpace = 1 << 30
	noSpace     = 64 << 20
)

// directory examines where the state lies, or will lie. It reports whether it can.
func (e *edgeDoctor) directory(dir string) bool {
	info, err := os.Stat(dir)
	exists := err == nil
	for at := dir; errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at; {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
		dir = at
	}
	switch {
	case err != nil:
		e.d.fail("state", "choose a directory that this user can read", "can't read %s: %s", dir, pathFault(err))
		return false
	case !info.IsDir():
		e.d.fail("state", "choose another directory with IOP_EDGE_STATE", "%s is not a directory", dir)
		return false
	case !writable(dir):
		e.d.fail("state", "give the directory to the Edge's user, or choose another with IOP_EDGE_STATE", "this user can't write in %s", dir)
		return false
	case !exists:
		e.d.ok("state", "its directory will be created in %s with mode 0700", dir)
	case opened(info.Mode(), 0o022):
		e.d.fail("state", "chmod 700 "+dir, "%s has mode %#o: anyone who can write there can become the operator", dir, info.Mode().Perm())
	case opened(info.Mode(), 0o077):
		e.d.warn("state", "chmod 700 "+dir, "%s has mode %#o: other users can read it", dir, info.Mode().Perm())
	default:
		e.d.ok("state", "%s is closed to other users", dir)
	}
	e.space(dir)
	return true
}

// writable reports whether this user can make files in a directory. Only making one tells, on every system.
func writable(dir string) bool {
	f, err := os.CreateTemp(dir, ".iop-doctor-*")
	if err != nil {
		return false
	}
	return errors.Join(f.Close(), os.Remove(f.Name())) == nil
}

func (e *edgeDoctor) space(dir string) {
	free, known := freeSpace(dir)
	switch {
	case !known:
	case free < noSpace:
		e.d.fail("disk", "free disk space: changes that can't be recorded are refused", "%s are free for %s", bytesText(int64(free)), dir)
	case free < littleSpace:
		e.d.warn("disk", "free disk space, or shorten IOP_EDGE_USAGE_RETENTION", "%s are free for %s", bytesText(int64(free)), dir)
	default:
		e.d.ok("disk", "%s are free for %s", bytesText(int64(min(free, 1<<62))), dir)
	}
}

func (e *edgeDoctor) adminToken() {
	_, err := state.ReadAdminToken(e.config.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.d.warn("admin token", "start the Edge once: it creates the token", "there is none next to the state yet")
	case err != nil:
		e.d.fail("admin token", "give the file to this user with mode 0600", "%s", oneLine(err))
	default:
		e.d.ok("admin token", "it is next to the state")
	}
}

// ports examines whether the Edge could listen, or does.
func (e *edgeDoctor) ports(ctx context.Context) {
	e.port(ctx, "port", "LISTEN", e.config.Listen, func(base string) bool {
		return e.isEdge(ctx, base, "/iop/v1/runs/doctor", "invalid_api_key", "run_not_found")
	})
	e.port(ctx, "admin port", "ADMIN_LISTEN", e.config.AdminListen, func(base string) bool {
		return e.isEdge(ctx, "http://"+dialable(e.config.AdminListen), "/admin/v1/status", "invalid_admin_token")
	})
	if e.config.managed() {
		e.port(ctx, "tunnel port", "TUNNEL_LISTEN", e.config.TunnelListen, func(string) bool {
			return e.isEdge(ctx, "http://"+dialable(e.config.AdminListen), "/admin/v1/status", "invalid_admin_token")
		})
	}
	if !listensOnLoopback(e.config.AdminListen) {
		e.d.warn("admin port", "listen on 127.0.0.1, and reach it by SSH, if the network is not trusted", "%s can be reached from other machines, without TLS", e.config.AdminListen)
	}
}

func (e *edgeDoctor) port(ctx context.Context, check, setting, address string, ours func(base string) bool) {
	if !isHostPort(address) {
		return // the settings' line has said so
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err == nil {
		listener.Close()
		e.d.ok(check, "%s is free", address)
		return
	}
	scheme, other, without := "http://", "https://", "with"
	if e.config.TLSCert != "" {
		scheme, other, without = other, scheme, "without"
	}
	variable := edgePrefix + setting
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && ours(scheme+dialable(address)):
		e.d.ok(check, "%s is used by a running Edge", address)
	case errors.Is(err, syscall.EADDRINUSE) && ours(other+dialable(address)):
		e.d.warn(check, "give doctor the running Edge's settings, or restart the Edge with these", "%s is used by a running Edge %s TLS, unlike these settings", address, without)
	case errors.Is(err, syscall.EADDRINUSE):
		e.d.fail(check, "stop the program that listens there (ss -ltnp shows it), or set "+variable, "%s is used by another program", address)
	case errors.Is(err, syscall.EACCES):
		e.d.fail(check, "run it as a service with CAP_NET_BIND_SERVICE, or set "+variable+" to a port above 1023", "this user may not listen on %s", address)
	default:
		e.d.fail(check, "set "+variable+" to an address of this machine", "can't listen on %s: %s", address, oneLine(err))
	}
}

// descriptors examines how many connections an Edge that is started here can have.
func (e *edgeDoctor) descriptors() {
	queue := e.config.QueueLimit
	if queue <= 0 {
		queue = admission.DefaultQueueLimit
	}
	shares := conns.OfProcess(e.config.managed())
	if shares.Public.Clients >= queue {
		e.d.ok("descriptors", "%d: enough for %d client connections at once", shares.Files, shares.Public.Clients)
		return
	}
	e.d.warn("descriptors", fmt.Sprintf("allow it %d (LimitNOFILE= in a unit, \"ulimit -n\" in a shell), or set IOP_EDGE_QUEUE_LIMIT lower", conns.FilesFor(queue)),
		"%d: enough for %d client connections, and %d may wait in one queue", shares.Files, shares.Public.Clients, queue)
}

// dialable is where a listener of this machine can be reached.
func dialable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listen
}

// isEdge reports whether what answers at a path does so with a code that is an Edge's. Nothing secret is sent.
func (e *edgeDoctor) isEdge(ctx context.Context, base, path string, codes ...string) bool {
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, http.NoBody)
	if err != nil {
		return false
	}
	response, err := ownPort().RoundTrip(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, reach.MaxBody))
	if err != nil {
		return false
	}
	return slices.Contains(codes, reach.Code(body))
}

// certificate examines what clients are shown.
func (e *edgeDoctor) certificate() {
	c := e.config
	if c.TLSCert == "" || c.TLSKey == "" {
		if c.TLSCert == "" && c.TLSKey == "" && !listensOnLoopback(c.Listen) {
			e.d.warn("tls", "give --tls-cert and --tls-key, or let a proxy on this machine end TLS and listen on 127.0.0.1", "without a certificate, keys and prompts can be read on their way to %s", c.Listen)
		}
		return
	}
	if !e.d.privateFile("tls", c.TLSKey) {
		return
	}
	pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		e.d.fail("tls", "IOP_EDGE_TLS_CERT must hold the certificate first and its chain after it, IOP_EDGE_TLS_KEY its key", "%s", oneLine(err))
		return
	}
	leaf := pair.Leaf
	e.d.remains("tls", "the certificate in "+c.TLSCert, leaf.NotBefore, leaf.NotAfter)
	names := append([]string{}, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	switch {
	case e.host == "":
		e.d.ok("tls", "it is for %s; --host NAME checks it against the name that clients use", strings.Join(names, ", "))
	case leaf.VerifyHostname(e.host) != nil:
		e.d.fail("tls", "get one for "+e.host, "it is for %s, and not for %s", strings.Join(names, ", "), e.host)
	default:
		e.d.ok("tls", "it is for %s", e.host)
	}
	e.chain(&pair)
}

func (e *edgeDoctor) chain(pair *tls.Certificate) {
	between := x509.NewCertPool()
	for _, raw := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(raw); err == nil {
			between.AddCert(c)
		}
	}
	// Its time has a line of its own.
	at := pair.Leaf.NotBefore.Add(pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore) / 2)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Intermediates: between, CurrentTime: at}); err != nil {
		e.d.warn("tls", "add the intermediate certificates to the file, or give clients and Nodes (IOP_NODE_CA) your authority", "this machine does not trust its chain: %s", oneLine(err))
		return
	}
	e.d.ok("tls", "its chain ends in an authority that this machine trusts")
}

// managed examines the identity and the master keys.
func (e *edgeDoctor) managed() {
	c := e.config
	if c.MasterKeyFile != "" {
		if keys, err := state.ReadMasterKeys(c.MasterKeyFile); err != nil {
			e.d.fail("master key", "create one with \"iop master-key create\", mode 0600, or give the right file", "%s", oneLine(err))
		} else {
			e.d.ok("master key", "%s in %s", counted(len(keys), "key"), c.MasterKeyFile)
		}
	}
	if !c.managed() {
		return
	}
	if c.MasterKeyFile == "" {
		e.d.warn("master key", "create one with \"iop master-key create FILE\" and set IOP_EDGE_MASTER_KEY_FILE to it", "there is none: slots can't be sealed or opened")
	}
	e.d.identity(identityFiles{cert: c.IdentityCert, key: c.IdentityKey, bundle: c.CA, socket: c.SPIFFESocket}, identity.RoleEdge)
}

// identity examines the certificate of managed mode. It reports whether it may be used.
func (d *doctor) identity(f identityFiles, role identity.Role) bool {
	if f.socket != "" {
		path := strings.TrimPrefix(f.socket, "unix://")
		if _, err := os.Stat(path); err != nil && path != f.socket {
			d.fail("identity", "start the agent, or name its socket", "no Workload API at %s: %s", path, pathFault(err))
			return false
		}
		d.ok("identity", "it comes from the Workload API at %s", f.socket)
		return true
	}
	if f.cert == "" || f.key == "" || f.bundle == "" {
		return false // the settings' line has said so
	}
	if !d.privateFile("identity", f.key) {
		return false
	}
	id, err := f.whose()
	switch {
	case err != nil:
		d.fail("identity", "\"iop ca inspect "+f.cert+" --bundle "+f.bundle+"\" shows what it is; \"iop ca issue\" makes another", "%s", oneLine(err))
		return false
	case id.Role() != role:
		d.fail("identity", "give the certificate of this process", "%s is the certificate of %s; its role must be %s", f.cert, id, role)
		return false
	}
	if _, err := tls.LoadX509KeyPair(f.cert, f.key); err != nil {
		d.fail("identity", "give the key that the certificate was issued for", "%s and %s: %s", f.cert, f.key, oneLine(err))
		return false
	}
	data, err := readPEM(f.cert)
	if err != nil {
		d.fail("identity", "name a file that can be read", "%s", err)
		return false
	}
	if all, err := identity.Inspect(data, time.Now()); err == nil && len(all) > 0 && all[0].NotAfter != nil {
		d.remains("identity", id.String(), *all[0].NotBefore, *all[0].NotAfter)
	}
	return true
}

// ready asks the Edge that runs whether it takes requests, as a balancer would.
func (e *edgeDoctor) ready(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	scheme := "http://"
	if e.config.TLSCert != "" {
		scheme = "https://"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+dialable(e.config.Listen)+"/readyz", http.NoBody)
	if err != nil {
		return
	}
	response, err := ownPort().RoundTrip(request)
	if err != nil {
		return // the port's line has said what is there
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 200))
	if err == nil && response.StatusCode == http.StatusServiceUnavailable {
		e.d.fail("edge", "its log says more; docs/operations.md has what to do", "it takes no requests: %s", strings.TrimSpace(string(said)))
	}
}

// ownPort asks a port of this machine, whatever its certificate names.
func ownPort() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}

// running asks the Edge that runs with these settings, if there is one.
func (e *edgeDoctor) running(ctx context.Context) {
	if !isHostPort(e.config.AdminListen) {
		return
	}
	o := &operator{admin: adminSettings{URL: "http://" + dialable(e.config.AdminListen)}, state: stateSettings{State: e.config.State}}
	if !o.edgeListens(ctx) {
		e.d.ok("edge", "none runs with these settings")
		return
	}
	e.ready(ctx)
	var status admin.Status
	if err := o.call(ctx, "GET", "/status", nil, &status); err != nil {
		e.d.warn("edge", "give the settings of the Edge that runs, IOP_EDGE_STATE first", "something answers at %s, but: %s", o.admin.URL, oneLine(err))
		return
	}
	e.d.ok("edge", "%s runs, version %s, %s online", status.EdgeID, status.Version, counted(status.NodesOnline, "Node"))
	if mine := readBuildInfo().Version; status.Version != mine {
		e.d.warn("edge", "restart it if it was updated", "it runs version %s, and this is %s", status.Version, mine)
	}
	if status.Config.Fault != nil {
		e.d.warn("edge", "correct the file; it is reloaded automatically", "it refused its route file and keeps using the previous one")
	}
	if c := status.Certificate; c != nil && c.Fault != "" {
		e.d.warn("edge", "correct the files: the Edge reloads them by itself", "it refused its new TLS certificate and uses the previous one, which ends in %s: %s", brief(time.Until(c.NotAfter)), oneLine(errors.New(c.Fault)))
	} else if c != nil {
		e.d.ok("edge", "its TLS certificate ends in %s", brief(time.Until(c.NotAfter)))
	}
	if status.NodesOnline == 0 {
		e.d.warn("edge", "on a Node's machine: iop doctor node", "no Node is connected")
	}
	for _, node := range status.Flapping {
		e.d.warn("edge", "give one of them a different --name", "two processes use the name %s", node)
	}
}
