package web

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"iop/gateway/admin"
	"iop/state"
)

const (
	cookieName = "iop_console"
	// sessionLife is how long a session lasts; it does not grow with use.
	sessionLife = 12 * time.Hour
	// maxSessions bounds the sessions at once. The oldest gives way.
	maxSessions = 64
	// sessionName is how many characters tell a session from others: of 32 each.
	sessionName = 8
	// maxForm bounds the body of a form, in bytes.
	maxForm = 1 << 20
)

// session is one operator's browser.
type session struct {
	id    string // the cookie's value, which is a secret
	name  string // what the session is called
	until time.Time

	mu         sync.Mutex
	playground admin.Key // of the playground, with its secret, made when it is first wanted; never shown
}

// sessions are those that are signed in, in memory: a restart signs everybody out.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
}

func (s *sessions) init() { s.byID = map[string]*session{} }

// begin makes a session.
func (s *sessions) begin(now time.Time) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest *session
	for id, at := range s.byID {
		if !now.Before(at.until) {
			delete(s.byID, id)
			continue
		}
		if oldest == nil || at.until.Before(oldest.until) {
			oldest = at
		}
	}
	if len(s.byID) >= maxSessions {
		delete(s.byID, oldest.id)
	}
	at := &session{id: rand.Text() + rand.Text(), name: strings.ToLower(rand.Text()[:sessionName]), until: now.Add(sessionLife)}
	s.byID[at.id] = at
	return at
}

// find returns the session of a request, or nil.
func (s *sessions) find(r *http.Request, now time.Time) *session {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.byID[cookie.Value]
	if at == nil || !now.Before(at.until) {
		return nil
	}
	return at
}

// end ends the session of a request.
func (s *sessions) end(r *http.Request) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.byID, cookie.Value)
	}
}

// sessionKey is the key of a request's session in its context.
type sessionKey struct{}

func sessionOf(ctx context.Context) *session {
	at, _ := ctx.Value(sessionKey{}).(*session)
	return at
}

// signInPath is the page to sign in on.
const signInPath = "/admin/sign-in"

// signInFor is where a browser without a session is sent: to sign in, and then back to the page that it has open. Who
// sent a form is told that nothing came of it.
func signInFor(r *http.Request) string {
	page, query := r.URL.RequestURI(), url.Values{}
	switch {
	case isPart(r):
		page = pathOf(r.Header.Get("Hx-Current-Url"))
	case r.Method != http.MethodGet:
		page = pathOf(r.Referer())
		query.Set("unsent", "1")
	}
	if page = inside(page); page != home {
		query.Set("next", page)
	}
	if len(query) == 0 {
		return signInPath
	}
	return signInPath + "?" + query.Encode()
}

// pathOf is the path and query of an address; empty: it is none.
func pathOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || address == "" {
		return ""
	}
	return u.RequestURI()
}

// signedIn lets in who has a session. A part of a page that is fetched sends the whole page to sign in.
func (c *console) signedIn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := c.sessions.find(r, time.Now())
		if at == nil {
			to := signInFor(r)
			if isPart(r) {
				w.Header().Set("Hx-Redirect", to)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
		if c.parts.Admit != nil && !c.parts.Admit(w, r) {
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r.WithContext(context.WithValue(actingAs(r, at), sessionKey{}, at)))
	})
}

// actingAs is a request's context whose changes are the session's.
func actingAs(r *http.Request, at *session) context.Context {
	return state.WithActor(r.Context(), state.Actor{Name: state.ActorConsole, Source: state.SourceOf(r.RemoteAddr), Session: at.name})
}

// noted has the audit note what the context's actor did.
func (c *console) noted(ctx context.Context, action state.AuditAction) {
	if c.parts.Audit != nil {
		c.parts.Audit(ctx, action)
	}
}

// signIn takes the admin token for a session.
func (c *console) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 8<<10)
	if err := r.ParseForm(); err != nil {
		c.pages.show(w, r, http.StatusBadRequest, "signin", signIn{Fault: "The form could not be read.", Next: home})
		return
	}
	next := inside(r.PostForm.Get("next"))
	if !c.parts.Verify(strings.TrimSpace(r.PostForm.Get("token"))) {
		c.refuseSignIn(w, r, next)
		return
	}
	at := c.sessions.begin(time.Now())
	c.log.Info("admin", "action", "console sign-in", "remote", r.RemoteAddr, "session", at.name)
	c.noted(actingAs(r, at), state.AuditSignedIn)
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: at.id, Path: "/admin", MaxAge: int(sessionLife / time.Second),
		// Browsers keep a Secure cookie of a loopback address too, and the listener is on one unless TLS stands before it.
		HttpOnly: true, Secure: true, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// refuseSignIn answers a wrong token.
func (c *console) refuseSignIn(w http.ResponseWriter, r *http.Request, next string) {
	status, fault := http.StatusUnauthorized, "Wrong admin token."
	if c.parts.Wrong != nil {
		if wait := c.parts.Wrong(r); wait > 0 {
			seconds := strconv.Itoa(int(wait / time.Second))
			w.Header().Set("Retry-After", seconds)
			status, fault = http.StatusTooManyRequests, "Wrong admin token, and too many failed attempts from your address. Try again in "+seconds+" s."
		}
	}
	c.pages.show(w, r, status, "signin", signIn{Fault: fault, Next: next})
}

func (c *console) signOut(w http.ResponseWriter, r *http.Request) {
	if at := c.sessions.find(r, time.Now()); at != nil {
		ctx := actingAs(r, at)
		c.closePlayground(ctx, at)
		c.noted(ctx, state.AuditSignedOut)
	}
	c.sessions.end(r)
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: "/admin", MaxAge: -1, HttpOnly: true, Secure: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, signInPath, http.StatusSeeOther)
}

// signIn is what the page to sign in on shows.
type signIn struct {
	Fault, Next string
	Unsent      bool // a form led here, and nothing came of it
}

func (c *console) signInPage(w http.ResponseWriter, r *http.Request) {
	next := inside(r.URL.Query().Get("next"))
	if c.sessions.find(r, time.Now()) != nil {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return
	}
	c.pages.show(w, r, http.StatusOK, "signin", signIn{Next: next, Unsent: r.URL.Query().Has("unsent")})
}

// inside returns the path if it is one of the console's, else its home: nobody is sent elsewhere by a link.
func inside(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(u.Path, home) || strings.Contains(u.Path, "..") || strings.ContainsAny(next, "\\\r\n") {
		return home
	}
	return u.RequestURI()
}
