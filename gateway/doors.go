package gateway

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"iop/gateway/conns"
	"iop/openai"
)

// doors count the connections of each listener. See package conns.
type doors struct {
	public, admin *conns.Table
	tunnel        *conns.Table // or nil: token mode
}

// fullWait is how long a client is asked to wait when all connections are taken.
const fullWait = 2 * time.Second

// openDoors puts a Table before each listener, and warns when they have too few descriptors.
func (s *Server) openDoors() {
	shares := conns.OfProcess(s.managed())
	if s.cfg.ConnectionsPerSource > 0 {
		shares.Public.PerSource = s.cfg.ConnectionsPerSource
	}
	if shares.Public.Clients < s.cfg.QueueLimit {
		s.log.Warn("the file descriptor limit is low: clients are refused before a queue is full", "descriptors", shares.Files,
			"client_connections", shares.Public.Clients, "queue_limit", s.cfg.QueueLimit, "descriptors_wanted", conns.FilesFor(s.cfg.QueueLimit))
	}
	s.doors.public = conns.New("public", shares.Public, s.log)
	s.doors.admin = conns.New("admin", shares.Admin, s.log)
	s.listener, s.adminLn = s.doors.public.Listener(s.listener), s.doors.admin.Listener(s.adminLn)
	if s.managed() {
		s.doors.tunnel = conns.New("tunnel", shares.Tunnel, s.log)
		s.tunnelLn = s.doors.tunnel.Listener(s.tunnelLn)
	}
}

// boundConnections has each server report its connections to its Table.
func (s *Server) boundConnections() {
	bind := func(srv *http.Server, t *conns.Table) {
		srv.ConnContext, srv.ConnState = withConn, t.Observe
	}
	bind(s.public, s.doors.public)
	bind(s.admin, s.doors.admin)
	if s.tunnel != nil {
		bind(s.tunnel, s.doors.tunnel)
	}
}

// place gives the connection of a request that was just authenticated its place, or says why not. Without a key none is given: by
// requests that are refused, and answers that it does not take, a stranger could hold all of them.
func (s *Server) place(w http.ResponseWriter, r *http.Request) *openai.Error {
	if conns.From(r.Context()).Admit() == conns.Allowed {
		return nil
	}
	w.Header().Set("Connection", "close")
	return openai.Overloaded(fullWait)
}

// admitOperator gives an operator's connection its place, or refuses the request.
func (s *Server) admitOperator(w http.ResponseWriter, r *http.Request) bool {
	if e := s.place(w, r); e != nil {
		s.answer(w, r, e)
		return false
	}
	return true
}

// serveNode lets a Node in.
func (s *Server) serveNode(w http.ResponseWriter, r *http.Request) {
	c := conns.From(r.Context())
	if c.Upgrade() != conns.Allowed {
		w.Header().Set("Connection", "close")
		s.answer(w, r, openai.Overloaded(fullWait))
		return
	}
	defer c.Upgraded()
	s.acceptor.ServeHTTP(w, r)
}

// doorCollector shows the connections of each listener.
type doorCollector struct{ d *doors }

var (
	connsDesc = prometheus.NewDesc("iop_connections", "Open connections, by listener and kind (fresh: no valid key or token yet, busy, idle, tunnel).",
		[]string{"listener", "kind"}, nil)
	connsLimitDesc = prometheus.NewDesc("iop_connections_limit", "Connection limit, by listener and kind (clients: busy and idle ones, tunnels).",
		[]string{"listener", "kind"}, nil)
	connsRefusedDesc = prometheus.NewDesc("iop_connections_refused_total",
		"Refused connections or first requests, by listener and reason (clients, source, tunnels, fresh, descriptors).",
		[]string{"listener", "reason"}, nil)
	connsEvictedDesc = prometheus.NewDesc("iop_connections_evicted_total", "Idle connections closed to make room for others.",
		[]string{"listener"}, nil)
)

// Describe implements prometheus.Collector.
func (c doorCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connsDesc, connsLimitDesc, connsRefusedDesc, connsEvictedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c doorCollector) Collect(ch chan<- prometheus.Metric) {
	collectDoor(ch, "public", c.d.public)
	collectDoor(ch, "admin", c.d.admin)
	if c.d.tunnel != nil {
		collectDoor(ch, "tunnel", c.d.tunnel)
	}
}

func collectDoor(ch chan<- prometheus.Metric, listener string, t *conns.Table) {
	gauge := func(d *prometheus.Desc, n int, kind string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), listener, kind)
	}
	n, limits := t.Counts(), t.Limits()
	gauge(connsDesc, n.Fresh, "fresh")
	gauge(connsDesc, n.Clients-n.Idle, "busy")
	gauge(connsDesc, n.Idle, "idle")
	gauge(connsDesc, n.Tunnels, "tunnel")
	gauge(connsLimitDesc, limits.Clients, "clients")
	gauge(connsLimitDesc, limits.Tunnels, "tunnels")
	for _, r := range conns.Reasons() {
		ch <- prometheus.MustNewConstMetric(connsRefusedDesc, prometheus.CounterValue, float64(t.Refused(r)), listener, r.String())
	}
	ch <- prometheus.MustNewConstMetric(connsEvictedDesc, prometheus.CounterValue, float64(t.Evicted()), listener)
}
