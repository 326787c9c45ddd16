package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	defaultWorkloadTimeout = 30 * time.Second
	// rewatch is how long to wait when the library has given up watching, which it does for two answers of an agent.
	rewatch = 30 * time.Second
)

// WorkloadConfig says where the SPIFFE Workload API is and who to be.
type WorkloadConfig struct {
	// Required.
	ID ID // who this process is; of several SVIDs the one with this ID is used, and no other

	// Optional.
	Address string        // unix:///path or tcp://127.0.0.1:port; empty: the variable SPIFFE_ENDPOINT_SOCKET
	Timeout time.Duration // for the first SVID; 0 means 30 s
	Logger  *slog.Logger  // or nil: nothing is logged
}

// Workload is a Source behind the SPIFFE Workload API: a SPIRE agent, or another. All its methods are for any
// goroutine.
type Workload struct {
	*holder

	// Static.
	logger *slog.Logger
	client *workloadapi.Client
	stop   context.CancelFunc
	done   chan struct{} // closed by run when it ends
	ready  chan struct{} // closed when there is a first certificate
	once   sync.Once     // for ready
}

var _ Source = (*Workload)(nil)

// OpenWorkload connects to an agent and waits until it has given an SVID for the ID, or until the timeout or ctx ends; the
// error then says what was wrong last. After that ctx does not matter, Close ends it.
//
// Each update takes effect as a whole if a peer would accept it; otherwise what is in force stays. An agent that
// can't be reached leaves what is in force too, to its end, and is tried again for ever. An agent that says no is
// believed at once: when it answers PermissionDenied, or sends SVIDs and none has the ID, there is no certificate until it
// gives one again.
func OpenWorkload(ctx context.Context, config WorkloadConfig) (*Workload, error) {
	if err := config.ID.Validate(); err != nil {
		return nil, err
	}
	address, err := workloadAddress(config.Address)
	if err != nil {
		return nil, err
	}
	// No proxy of the environment may stand between us and who hands out our key.
	client, err := workloadapi.New(ctx, workloadapi.WithAddr(address), workloadapi.WithDialOptions(grpc.WithNoProxy()))
	if err != nil {
		return nil, fmt.Errorf("workload API: %w", err)
	}
	watching, stop := context.WithCancel(context.Background())
	w := &Workload{
		holder: newHolder(config.ID), logger: orDiscard(config.Logger), client: client, stop: stop,
		done: make(chan struct{}), ready: make(chan struct{}),
	}
	go w.run(watching)
	if err := w.wait(ctx, config.Timeout); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// workloadAddress refuses what would carry private keys over a network.
func workloadAddress(address string) (string, error) {
	if address == "" {
		address, _ = workloadapi.GetDefaultAddress()
	}
	if address == "" {
		return "", fmt.Errorf("workload API: no address: name one, or set %s", workloadapi.SocketEnv)
	}
	if err := workloadapi.ValidateAddress(address); err != nil {
		return "", fmt.Errorf("workload API: %w", err)
	}
	if u, err := url.Parse(address); err == nil && u.Scheme == "tcp" && !net.ParseIP(u.Hostname()).IsLoopback() {
		return "", errors.New("workload API: a TCP address must be on this machine: keys are sent over it in the clear")
	}
	return address, nil
}

func (w *Workload) wait(ctx context.Context, timeout time.Duration) error {
	if timeout <= 0 {
		timeout = defaultWorkloadTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		fault := w.Status().Fault
		if fault == "" {
			fault = "no answer"
		}
		return fmt.Errorf("workload API: no certificate for %s: %s (%w)", w.id, fault, ctx.Err())
	}
}

func (w *Workload) run(ctx context.Context) {
	defer close(w.done)
	for ctx.Err() == nil {
		// It returns when ctx ends, and for the statuses InvalidArgument and Canceled, which are no reason to stop
		// asking for good. The error has been told to the watcher.
		_ = w.client.WatchX509Context(ctx, watcher{w, ctx})
		timer := time.NewTimer(rewatch)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Close ends the watch and the connection to the agent, and waits for both. It may be called more than once.
func (w *Workload) Close() error {
	if !w.shut() {
		<-w.done
		return nil
	}
	w.stop()
	<-w.done
	return w.client.Close()
}

// watcher takes what the library's watch finds, on the goroutine of run.
type watcher struct {
	w   *Workload
	ctx context.Context // of the watch
}

// OnX509ContextUpdate takes an update.
func (h watcher) OnX509ContextUpdate(update *workloadapi.X509Context) {
	if err := h.w.take(update); err != nil {
		h.w.note(err)
	}
}

// OnX509ContextWatchError takes the end of a watch, or an update that can't be parsed.
func (h watcher) OnX509ContextWatchError(err error) {
	if h.ctx.Err() != nil {
		return // by Close
	}
	denied := status.Code(err) == codes.PermissionDenied
	if denied {
		err = errors.New("the agent has no identity for this process")
	}
	h.w.note(err) // before the change, so that who is told of that finds out why
	if denied {
		h.w.withdraw(nil)
	}
}

func (w *Workload) note(err error) {
	if w.fault(err) {
		w.logger.Error("identity: the workload API returns no new identity", "id", w.id, "error", err)
	}
}

func (w *Workload) take(update *workloadapi.X509Context) error {
	bundle, err := w.bundleOf(update)
	if err != nil {
		return err
	}
	for _, svid := range update.SVIDs {
		if svid.ID.String() != string(w.id) {
			continue
		}
		next, err := newMaterial(w.id, svid.Certificates, svid.PrivateKey, bundle)
		if err != nil {
			return err
		}
		w.install(next)
		w.once.Do(func() { close(w.ready) })
		now := w.Status()
		w.logger.Info("identity: updated", "id", w.id, "serial", now.Serial, "not_after", now.NotAfter, "roots", now.Roots)
		return nil
	}
	err = fmt.Errorf("the agent returns %d identities for this process, and %s is not among them", len(update.SVIDs), w.id)
	w.note(err) // as there
	w.withdraw(bundle)
	return err
}

// bundleOf returns our trust domain's authorities: those of others, federated ones too, are not believed.
func (w *Workload) bundleOf(update *workloadapi.X509Context) (*Bundle, error) {
	domain, err := spiffeid.TrustDomainFromString(string(w.id.TrustDomain()))
	if err != nil {
		return nil, err
	}
	given, ok := update.Bundles.Get(domain)
	if !ok {
		return nil, fmt.Errorf("the agent returns no bundle of %s", w.id.TrustDomain())
	}
	bundle, err := NewBundle(given.X509Authorities())
	if err != nil {
		return nil, err
	}
	return w.inForce(bundle), nil
}

// withdraw takes the certificate out of force. The authorities stay, or become the given ones: peers are still judged.
func (w *Workload) withdraw(bundle *Bundle) {
	m, err := w.current()
	if err != nil {
		return // none yet
	}
	if bundle == nil {
		bundle = m.bundle
	}
	if m.certificate != nil || m.bundle != bundle {
		w.install(&material{bundle: bundle})
	}
}
