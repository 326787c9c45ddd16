package bench

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Bounds of a run. They are far beyond what a run needs, and there so that a typing error ends by itself.
const (
	maxConcurrency = 10_000
	maxRequests    = 10_000_000
	maxDuration    = time.Hour
)

// grace is what requests that are under way when the duration is over get to end.
const grace = 30 * time.Second

// Target is where requests go.
type Target struct {
	// URL is the base URL, with or without "/v1". Required.
	URL string
	// Key is sent as a bearer token if it is not empty.
	Key string
	// Model is the request's model. Required.
	Model string
}

// Config describes a run.
type Config struct {
	Target Target // required
	// Concurrency is how many requests are under way at once; at least 1.
	Concurrency int
	// Requests is how many requests are made. A run ends when they are done or when Duration is over, whichever comes
	// first; 0 leaves it to Duration.
	Requests int
	// Duration is how long new requests are begun; 0 leaves it to Requests. What is under way then gets 30 s to end.
	Duration time.Duration
	// Stream asks for streams; otherwise for whole answers.
	Stream bool
	// MaxTokens is the request's max_tokens; 0 sends none.
	MaxTokens int
	// Prompt is the user's message.
	Prompt string
	// Progress is called once a second, from a goroutine of Run's own, and must return soon. Or nil.
	Progress func(Progress)
}

// Progress is how far a run is.
type Progress struct {
	Elapsed        time.Duration
	Ended, Failed  int64 // Ended includes Failed
	Tokens         int64
	UnderWay       int64
	RequestsWanted int // 0: until the duration is over
}

func (c Config) validate() error {
	if err := c.Target.validate(); err != nil {
		return err
	}
	switch {
	case c.Concurrency < 1 || c.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency must be 1 to %d", maxConcurrency)
	case c.Requests < 0 || c.Requests > maxRequests:
		return fmt.Errorf("requests must be 0 to %d", maxRequests)
	case c.Duration < 0 || c.Duration > maxDuration:
		return fmt.Errorf("duration must be 0 to %s", maxDuration)
	case c.Requests == 0 && c.Duration == 0:
		return errors.New("requests or duration must bound the run")
	case c.MaxTokens < 0:
		return errors.New("max-tokens must not be negative")
	}
	return nil
}

func (t Target) validate() error {
	u, err := url.Parse(t.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("url must be http:// or https:// with a host, e.g. http://127.0.0.1:8480/v1")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("url must not hold a user, a query or a fragment")
	}
	if t.Model == "" {
		return errors.New("model must not be empty")
	}
	return nil
}

// endpoint returns the URL of a path under /v1.
func (t Target) endpoint(path string) string {
	base := strings.TrimSuffix(t.URL, "/")
	return strings.TrimSuffix(base, "/v1") + "/v1" + path
}
