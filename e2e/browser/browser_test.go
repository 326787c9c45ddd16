package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// tab is one tab of a browser. Whatever goes wrong in its pages, and every request that leaves the console's origin,
// fails the test.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu      sync.Mutex
	origin  string   // guarded by mu where it is changed
	faults  []string // guarded by mu
	allowed []string // guarded by mu; texts of faults that are meant
	asked   []string // guarded by mu; what dialogs said
}

// watching is run in each page before its own scripts.
const watching = `addEventListener("securitypolicyviolation", (e) => console.error("policy: " + e.violatedDirective + " " + e.blockedURI + " " + e.sourceFile + ":" + e.lineNumber));`

// otherHost is a name that the browser takes for another machine's.
const otherHost = "admin.example.com"

// openTab starts a browser for the console at origin.
func openTab(t *testing.T, origin string) *tab {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.IgnoreCertErrors, chromedp.Flag("disable-gpu", true), chromedp.Flag("no-proxy-server", true), chromedp.Flag("host-resolver-rules", "MAP "+otherHost+" 127.0.0.1"), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.Env("DBUS_SESSION_BUS_ADDRESS=/dev/null"),
	)
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	b := &tab{t: t, origin: origin}
	ctx, closeTab := chromedp.NewContext(allocator, chromedp.WithListener(b.event))
	b.ctx = ctx
	t.Cleanup(func() {
		closeTab()
		end()
		b.clean("the end")
	})
	if err := chromedp.Do(ctx); err != nil { // without a time limit, which would be the browser's
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, audits.Enable, cdp.Empty{})
	call(b, runtime.Enable, cdp.Empty{})
	call(b, page.Enable, page.EnableParams{})
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watching})
	return b
}

// call gives the tab a command of the DevTools protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

// event notes what must not be.
func (b *tab) event(e any) {
	switch e := e.(type) {
	case *network.EventRequestWillBeSent:
		b.mu.Lock()
		origin := b.origin
		b.mu.Unlock()
		if at := e.Request.URL; !strings.HasPrefix(at, origin+"/") && !strings.HasPrefix(at, "data:") && at != "about:blank" {
			b.fault("a request leaves the console's origin: " + at)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			b.fault(fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			var text []string
			for _, arg := range e.Args {
				text = append(text, string(arg.Value), arg.Description)
			}
			b.fault("console: " + strings.Join(text, " "))
		}
	case *runtime.EventExceptionThrown:
		b.fault("exception: " + (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *audits.EventIssueAdded:
		if e.Issue.Code == audits.InspectorIssueCodeContentSecurityPolicyIssue {
			said, _ := json.Marshal(e.Issue.Details.ContentSecurityPolicyIssueDetails)
			b.fault("policy: " + string(said))
		}
	case *page.EventJavascriptDialogOpening:
		b.mu.Lock()
		b.asked = append(b.asked, e.Message)
		b.mu.Unlock()
		if e.Type != page.DialogTypeConfirm {
			b.fault("a dialog: " + e.Message)
		}
		// An event's handler must not wait.
		go func() {
			if _, err := chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true}); err != nil {
				b.fault("the dialog: " + err.Error())
			}
		}()
	}
}

func (b *tab) fault(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, text)
}

// allow lets faults that hold the text pass: they are meant.
func (b *tab) allow(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allowed = append(b.allowed, text)
}

// clean fails the test for each fault since it was asked last.
func (b *tab) clean(where string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		if !slices.ContainsFunc(b.allowed, func(text string) bool { return strings.Contains(fault, text) }) {
			b.t.Errorf("%s: %s", where, fault)
		}
	}
	b.faults = nil
}

// takes reports whether there is a fault with the text, and forgets all faults if so.
func (b *tab) takes(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := slices.ContainsFunc(b.faults, func(fault string) bool { return strings.Contains(fault, text) })
	if found {
		b.faults = nil
	}
	return found
}

// forget forgets the faults so far.
func (b *tab) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = nil
}

// confirmed returns what the last dialog asked.
func (b *tab) confirmed() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.asked) == 0 {
		return ""
	}
	return b.asked[len(b.asked)-1]
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// open goes to a path of the console and waits until it is there.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.origin + path))
}

// eval runs script in the page; into, if it is not nil, takes its value, a promise's too.
func (b *tab) eval(script string, into any) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[[]byte](script, chromedp.EvalAwaitPromise))
	if err == nil && into != nil {
		err = json.Unmarshal(value, into)
	}
	if err != nil {
		b.t.Fatalf("%.200s: %v", script, err)
	}
}

// text is a string that script yields.
func (b *tab) text(script string) (s string) {
	b.t.Helper()
	b.eval("String("+script+")", &s)
	return s
}

// until waits until the condition is true in the page. While the page changes to another it is not.
func (b *tab) until(what, condition string) {
	b.t.Helper()
	var last error
	for deadline := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
		last = err
		cancel()
		if last == nil && is {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("not in %s: %s (%v)\nat %s\n%s", patience, what, last, b.text("location.href"), b.text("document.body.innerText"))
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// shows waits until the page has the text.
func (b *tab) shows(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("the page shows %q", text), "document.body && document.body.innerText.includes("+quote(text)+")")
}

// press focuses what the selector finds and presses Enter, as who has no mouse does.
func (b *tab) press(selector string) {
	b.t.Helper()
	b.focus(selector)
	b.run(chromedp.KeyEvent(kb.Enter))
}

func (b *tab) focus(selector string) {
	b.t.Helper()
	b.until("there is "+selector, "document.querySelector("+quote(selector)+")")
	b.eval("(() => { const e = document.querySelector("+quote(selector)+"); e.focus(); if (document.activeElement !== e) throw new Error('it takes no focus: ' + e.outerHTML); })()", nil)
}

// fill types text into a field, in place of what it had.
func (b *tab) fill(selector, text string) {
	b.t.Helper()
	b.focus(selector)
	b.eval("document.activeElement.select && document.activeElement.select()", nil)
	call(b, input.InsertText, input.InsertTextParams{Text: text})
}

// leaves does what makes the browser load a page, and waits until that is there.
func (b *tab) leaves(do func()) {
	b.t.Helper()
	b.eval("window.before = true", nil)
	do()
	b.until("another page is there", "!window.before && document.readyState === 'complete'")
}

// submit sends a form with Enter on its button.
func (b *tab) submit(button string) {
	b.t.Helper()
	b.leaves(func() { b.press(button) })
}

// stays marks the page; the function it returns fails the test if it was loaded anew since.
func (b *tab) stays() func() {
	b.t.Helper()
	b.eval("window.same = true", nil)
	return func() {
		b.t.Helper()
		var same bool
		b.eval("window.same === true", &same)
		if !same {
			b.t.Error("the page was loaded anew")
		}
	}
}

// cookies returns those that the browser keeps.
func (b *tab) cookies() []*network.Cookie {
	b.t.Helper()
	return call(b, network.GetCookies, network.GetCookiesParams{URLs: []string{b.origin + "/admin/"}}).Cookies
}

// quote is a JavaScript string.
func quote(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // of a string
	}
	return string(text)
}
