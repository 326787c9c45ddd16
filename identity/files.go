package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

// maxPEMFile bounds what is read of a file: 64 authorities with room for comments.
const maxPEMFile = 1 << 20

// How often the files are looked at, and how soon again when one has changed: whoever writes in place or writes three files
// needs a moment, and half a bundle can be a valid one.
const (
	defaultPoll = 10 * time.Second
	settle      = time.Second
)

// FilesConfig names the files of an identity.
type FilesConfig struct {
	// Required.
	ID         ID     // who this process is; the certificate must say the same
	CertFile   string // PEM: the leaf first, then intermediates
	KeyFile    string // PEM: its private key, readable by its owner alone
	BundleFile string // PEM: the authorities to believe, two sets of them during a rotation

	// Optional.
	Poll   time.Duration // between looks at the files; 0 means 10 s
	Logger *slog.Logger  // or nil: nothing is logged
}

// Files is a Source in PEM files. All its methods are for any goroutine.
type Files struct {
	*holder

	// Static.
	config FilesConfig
	logger *slog.Logger
	stop   context.CancelFunc
	done   chan struct{} // closed by run when it ends

	// loading is held while files are read and taken, so that sets take effect in the order in which they were read.
	loading sync.Mutex
	taken   [sha256.Size]byte // guarded by loading: what was taken or refused last
	pending [sha256.Size]byte // guarded by loading: what the last look found and did not take yet, or zero
}

var _ Source = (*Files)(nil)

// OpenFiles reads the files, fails if they are not a valid identity, and from then on looks at their contents every 10
// seconds. A changed set takes effect as a whole, once two looks have found it and if it is valid: key and certificate
// belong together, a peer would accept the certificate, it names the configured ID, and a new certificate ends
// later than the one in force. Otherwise the one in force stays, Status says why, and the log says it once.
func OpenFiles(config FilesConfig) (*Files, error) {
	if err := config.ID.Validate(); err != nil {
		return nil, err
	}
	if config.Poll <= 0 {
		config.Poll = defaultPoll
	}
	f := &Files{holder: newHolder(config.ID), config: config, logger: orDiscard(config.Logger), done: make(chan struct{})}
	if err := f.Reload(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go f.run(ctx)
	return f, nil
}

func orDiscard(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return logger
}

func (f *Files) run(ctx context.Context) {
	defer close(f.done)
	wait := f.config.Poll
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = f.config.Poll
		if f.look() {
			wait = min(settle, wait)
		}
	}
}

// Close stops looking at the files, and waits for a look under way. It may be called more than once; the error is nil.
func (f *Files) Close() error {
	if f.shut() {
		f.stop()
	}
	<-f.done
	return nil
}

// Reload reads the files now and takes what they hold at once, as a SIGHUP asks for. The error says why they were refused;
// the identity in force then stays.
func (f *Files) Reload() error {
	f.loading.Lock()
	defer f.loading.Unlock()
	return f.take(f.read())
}

// look reads the files and takes what the look before has found too. It reports whether it wants to look again soon.
func (f *Files) look() bool {
	f.loading.Lock()
	defer f.loading.Unlock()
	set := f.read()
	defer set.forget()
	switch {
	case set.digest == f.taken && f.Status().Fault == "":
		f.pending = [sha256.Size]byte{}
		return false
	case set.digest != f.taken && set.digest != f.pending:
		f.pending = set.digest
		return true
	}
	// A set that was refused is tried at each look: it may only have been too early for it.
	f.take(set)
	return false
}

// fileSet is one reading of the three files.
type fileSet struct {
	digest            [sha256.Size]byte // of the contents, or of the error's text
	cert, key, bundle []byte
	err               error
}

// forget overwrites the key as far as Go lets us: the parsed key stays in memory while it is in use.
func (s *fileSet) forget() { clear(s.key) }

func (f *Files) read() *fileSet {
	s := &fileSet{}
	var certErr, keyErr, bundleErr error
	s.cert, certErr = readFile(f.config.CertFile, false)
	s.key, keyErr = readFile(f.config.KeyFile, true)
	s.bundle, bundleErr = readFile(f.config.BundleFile, false)
	if s.err = cmp.Or(certErr, keyErr, bundleErr); s.err != nil {
		s.digest = sha256.Sum256([]byte(s.err.Error()))
		return s
	}
	hash := sha256.New()
	for _, content := range [][]byte{s.cert, s.key, s.bundle} {
		part := sha256.Sum256(content) // of fixed size, so that nothing can move from one file to the next unseen
		hash.Write(part[:])
	}
	hash.Sum(s.digest[:0])
	return s
}

// take makes a set the identity in force, or says why not.
func (f *Files) take(s *fileSet) error {
	defer s.forget()
	f.taken, f.pending = s.digest, [sha256.Size]byte{}
	next, err := f.parse(s)
	if err != nil {
		// The first set's error is OpenFiles' alone: there is nothing yet that could stay in force.
		if _, none := f.current(); f.fault(err) && none == nil {
			f.logger.Error("identity: the new files were rejected; the old ones stay in use", "error", err)
		}
		return err
	}
	if before, err := f.current(); err == nil && sameMaterial(before, next) {
		f.well()
		return nil
	}
	f.install(next)
	status := f.Status()
	f.logger.Info("identity: loaded", "id", f.id, "serial", status.Serial, "not_after", status.NotAfter, "roots", status.Roots)
	return nil
}

func (f *Files) parse(s *fileSet) (*material, error) {
	if s.err != nil {
		return nil, s.err
	}
	bundle, err := ParseBundle(s.bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.config.BundleFile, err)
	}
	chain, err := parseCertificates(s.cert)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.config.CertFile, err)
	}
	pair, err := tls.X509KeyPair(certificatePEM(chain[0].Raw), s.key)
	if err != nil {
		return nil, fmt.Errorf("%s: no private key that matches the certificate", f.config.KeyFile)
	}
	next, err := newMaterial(f.id, chain, pair.PrivateKey, f.inForce(bundle))
	if err != nil {
		return nil, err
	}
	return next, f.checkLater(next)
}

// checkLater refuses a certificate that ends before the one in force does: most likely an old file was put back.
func (f *Files) checkLater(next *material) error {
	before, err := f.current()
	if err != nil || before.certificate.Leaf.Equal(next.certificate.Leaf) || next.notAfter.After(before.notAfter) {
		return nil
	}
	return fmt.Errorf("%s: the certificate expires at %s, not later than the one in use (%s)", f.config.CertFile,
		next.notAfter.UTC().Format(time.RFC3339), before.notAfter.UTC().Format(time.RFC3339))
}

func sameMaterial(a, b *material) bool {
	return a.bundle == b.bundle && slices.EqualFunc(a.certificate.Certificate, b.certificate.Certificate, bytes.Equal)
}

// readFile reads a regular file of bounded size. A private one must be closed to everybody but its owner.
func readFile(path string, private bool) ([]byte, error) {
	// A pipe would block the open, so it is found out before.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); private && mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s has mode %#o, so others may read the key in it: set it to 0600", path, mode)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxPEMFile+1))
	if err == nil && len(content) > maxPEMFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxPEMFile)
	}
	return content, err
}
