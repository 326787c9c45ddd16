// Package workloadtest is a SPIFFE Workload API for tests: an agent that hands out what a test tells it to, by the real
// protocol on a unix socket. Nothing but tests imports it. It judges nothing: what it is given, it says.
package workloadtest

import (
	"net"
	"sync"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// SVID is an identity that an Agent hands out.
type SVID struct {
	ID    string // a SPIFFE ID
	Chain []byte // certificates in DER, one after the other, the leaf first
	Key   []byte // its private key, PKCS#8
	Roots []byte // the authorities of its trust domain in DER, one after the other
}

// Agent is a Workload API server. Its methods may be called from any goroutine, but Start and Stop take turns.
type Agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer

	// Static.
	path string

	// The caller's of Start and Stop.
	server *grpc.Server  // nil while it does not run
	served chan struct{} // closed when the server has ended

	mu      sync.Mutex
	answer  *workload.X509SVIDResponse // guarded by mu; nil: it says nothing yet
	refusal error                      // guarded by mu; given in place of an answer where it is not nil
	changed chan struct{}              // guarded by mu; closed and replaced
}

// New makes an Agent for a socket at path, which must be short enough for one (some 100 bytes).
func New(path string) *Agent { return &Agent{path: path, changed: make(chan struct{})} }

// Address is where it listens, as clients want it.
func (a *Agent) Address() string { return "unix://" + a.path }

// Start begins to listen.
func (a *Agent) Start() error {
	listener, err := net.Listen("unix", a.path)
	if err != nil {
		return err
	}
	server, served := grpc.NewServer(), make(chan struct{})
	a.server, a.served = server, served
	workload.RegisterSpiffeWorkloadAPIServer(server, a)
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Stop
	}()
	return nil
}

// Stop cuts all connections. One that does not run stays as it is.
func (a *Agent) Stop() {
	if a.server == nil {
		return
	}
	a.server.Stop()
	<-a.served
	a.server = nil
}

// Give has every client, now and later, get these identities.
func (a *Agent) Give(svids ...SVID) {
	answer := &workload.X509SVIDResponse{}
	for _, s := range svids {
		answer.Svids = append(answer.Svids, &workload.X509SVID{SpiffeId: s.ID, X509Svid: s.Chain, X509SvidKey: s.Key, Bundle: s.Roots})
	}
	a.say(answer, nil)
}

// Refuse has every client get an error of gRPC, until Give.
func (a *Agent) Refuse(refusal error) { a.say(nil, refusal) }

func (a *Agent) say(answer *workload.X509SVIDResponse, refusal error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer, a.refusal = answer, refusal
	close(a.changed)
	a.changed = make(chan struct{})
}

// FetchX509SVID is the method of the protocol.
func (a *Agent) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); len(md.Get("workload.spiffe.io")) != 1 {
		return status.Error(codes.InvalidArgument, "security header missing")
	}
	for {
		a.mu.Lock()
		answer, refusal, changed := a.answer, a.refusal, a.changed
		a.mu.Unlock()
		if refusal != nil {
			return refusal
		}
		if answer != nil {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
