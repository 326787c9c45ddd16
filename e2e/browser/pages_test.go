package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Widths that pages are looked at, in CSS pixels: a telephone's and a desk's.
var widths = []int64{375, 1440}

var schemes = []string{"light", "dark"}

// emptyPages are looked at before anything is there.
func (s *story) emptyPages(t *testing.T) {
	s.looksAt(t, "empty", map[string]string{
		"overview": "/admin/", "nodes": "/admin/nodes", "runs": "/admin/runs", "routes": "/admin/routes", "keys": "/admin/keys", "slots": "/admin/slots",
		"usage": "/admin/usage", "playground": "/admin/playground", "audit": "/admin/audit", "fault": "/admin/nothing-here",
	})
}

// fullPages are looked at when all has happened.
func (s *story) fullPages(t *testing.T) {
	var runs struct {
		Data []struct{ ID, Outcome string }
	}
	if err := json.Unmarshal([]byte(s.get("/admin/v1/runs?limit=50")), &runs); err != nil {
		t.Fatal(err)
	}
	var keys struct{ Data []struct{ ID string } }
	if err := json.Unmarshal([]byte(s.get("/admin/v1/keys")), &keys); err != nil || len(keys.Data) == 0 || len(runs.Data) == 0 {
		t.Fatalf("%d keys, %d runs, %v", len(keys.Data), len(runs.Data), err)
	}
	s.looksAt(t, "full", map[string]string{
		"overview": "/admin/", "nodes": "/admin/nodes", "node": "/admin/nodes/gpu-1", "node-evil": "/admin/nodes/evil-1", "runs": "/admin/runs", "run": "/admin/runs/" + runs.Data[0].ID,
		"runs-filtered": "/admin/runs?outcome=cancelled", "routes": "/admin/routes", "keys": "/admin/keys", "key": "/admin/keys/" + keys.Data[0].ID,
		"slots": "/admin/slots", "usage": "/admin/usage?by=key", "usage-models": "/admin/usage?by=model", "playground": "/admin/playground", "audit": "/admin/audit",
		"audit-filtered": "/admin/audit?slot=" + url.QueryEscape(harm), "fault": "/admin/runs/none",
	})
}

// shots is where screenshots go.
func shots(t *testing.T) string {
	dir := os.Getenv("IOP_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Logf("screenshots: %s", dir)
	return dir
}

// looksAt looks at pages in each width and scheme.
func (s *story) looksAt(t *testing.T, state string, pages map[string]string) {
	s.allow("status of 404") // of the pages that are none
	dir := shots(t)
	names := make([]string, 0, len(pages))
	for name := range pages {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, scheme := range schemes {
		for _, width := range widths {
			s.emulate(width, scheme)
			for _, name := range names {
				s.looksAtOne(fmt.Sprintf("%s %s at %d in %s", state, name, width, scheme), pages[name], width, filepath.Join(dir, fmt.Sprintf("%s-%s-%d-%s.png", state, name, width, scheme)))
			}
		}
	}
	s.emulate(1440, "light")
}

func (s *story) emulate(width int64, scheme string) {
	s.t.Helper()
	s.run(chromedp.EmulateViewport(width, 900))
	call(s.tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// looksAtThis looks at the page as it is now.
func (s *story) looksAtThis(t *testing.T, name string) {
	dir := shots(t)
	for _, scheme := range schemes {
		for _, width := range widths {
			s.emulate(width, scheme)
			s.look(fmt.Sprintf("%s at %d in %s", name, width, scheme), width, filepath.Join(dir, fmt.Sprintf("this-%s-%d-%s.png", name, width, scheme)))
		}
	}
	s.emulate(1440, "light")
}

func (s *story) looksAtOne(what, path string, width int64, file string) {
	s.t.Helper()
	s.open(path)
	s.look(what, width, file)
}

// look checks the page that is there in the width and scheme that are set, and keeps a picture of it.
func (s *story) look(what string, width int64, file string) {
	t := s.t
	t.Helper()
	s.until(what+" is whole", `document.readyState === "complete" && !document.querySelector("main").innerText.includes("Asking for") &&
		[...document.querySelectorAll("[data-chart]")].every((e) => e.querySelector("canvas"))`)
	s.until(what+" has no markup of a name", `!window.harmed && !document.querySelector("main img, main script")`)
	if width == 375 {
		var wide float64
		s.eval("document.scrollingElement.scrollWidth", &wide)
		if wide > 375 {
			t.Errorf("%s is %.0f pixels wide: %s", what, wide, s.text(`[...document.querySelectorAll("main *, header *")].filter((e) => e.getBoundingClientRect().right > 376 && !e.closest(".scroll, pre, nav ul")).map((e) => e.outerHTML.slice(0, 120)).slice(0, 5).join("\n")`))
		}
	}
	for _, finding := range s.axe() {
		t.Errorf("%s: %s", what, finding)
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	image, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, image, 0o644); err != nil {
		t.Fatal(err)
	}
	s.clean(what)
}

// axe returns what axe-core finds serious or critical on the page.
func (s *story) axe() (found []string) {
	s.t.Helper()
	s.eval("if (!window.axe) {"+axe+"}; undefined", nil)
	var said string
	s.eval(`axe.run(document, {resultTypes: ["violations"]}).then((r) => JSON.stringify(r.violations.map((v) => ({impact: v.impact, id: v.id, help: v.help, nodes: v.nodes.map((n) => n.html.slice(0, 200) + " " + n.failureSummary)}))))`, &said)
	var violations []struct {
		Impact, ID, Help string
		Nodes            []string
	}
	if err := json.Unmarshal([]byte(said), &violations); err != nil {
		s.t.Fatal(err)
	}
	for _, v := range violations {
		if v.Impact == "serious" || v.Impact == "critical" {
			found = append(found, fmt.Sprintf("axe: %s %s: %s\n%s", v.Impact, v.ID, v.Help, strings.Join(v.Nodes[:min(3, len(v.Nodes))], "\n")))
		}
	}
	return found
}

// catches holds that what the other parts rely on to find faults does find them.
func (s *story) catches(t *testing.T) {
	s.open("/admin/")
	for what, script := range map[string]string{
		"an image from elsewhere": `const e = document.createElement("img"); e.src = "https://elsewhere.invalid/x.png"; document.body.append(e)`,
		"an inline script":        `const e = document.createElement("script"); e.textContent = "window.harmed = 1"; document.body.append(e)`,
		"a style attribute":       `document.querySelector("main").insertAdjacentHTML("beforeend", "<p style='color: red'>x</p>")`,
		"a call elsewhere":        `fetch("https://elsewhere.invalid/").catch(() => {})`,
	} {
		s.eval("(() => { "+script+" })()", nil)
		eventually(t, what+" is told", func() bool { return s.takes("policy: ") })
	}
	s.eval(`document.querySelector("main").insertAdjacentHTML("beforeend", "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>")`, nil)
	if found := s.axe(); len(found) == 0 || !strings.Contains(strings.Join(found, "\n"), "image-alt") {
		t.Errorf("axe finds %q of an image without a text", found)
	}
	s.eval("if (window.harmed) throw new Error('an inline script has run')", nil)
	s.open("/admin/")
	s.forget()
}

// swaps counts the updates of the page from now on.
const swaps = `window.swaps = 0; document.addEventListener("htmx:afterSettle", () => { window.swaps++; }); undefined`

// keyboard goes through pages with the Tab key alone.
func (s *story) keyboard(t *testing.T) {
	for path, wanted := range map[string][]string{
		"/admin/":            {"Skip to content", "IOP", "Overview", "Nodes", "Audit", "Sign out", "gpu-1"},
		"/admin/nodes":       {"Skip to content", "gpu-1", "Node name", "Create a join token", "Join tokens (2)"},
		"/admin/nodes/gpu-1": {"Drain", "Supported operations", "Transport, measured at both ends", "Model to pull", "Pull", "Delete llama3.2"},
		"/admin/keys":        {"New key", "alice " + harm},
		"/admin/slots":       {"openai-main", "Name", "Profile", "Value", "Create the slot"},
		"/admin/playground":  {"Model", "Message", "Send", "New conversation", "Raw events of the last answer"},
	} {
		s.open(path)
		s.until("the page is whole", `!document.querySelector("main").innerText.includes("Asking for")`)
		reached := s.tabs()
		at := -1
		for _, name := range wanted {
			next := slices.Index(reached[at+1:], name)
			if next < 0 {
				t.Errorf("%s: Tab does not reach %q after %d steps of %q", path, name, at+1, reached)
				break
			}
			at += next + 1
		}
	}
	for path, selector := range map[string]string{
		"/admin/": "#live a", "/admin/nodes": "#node-gpu-1 a", "/admin/nodes/gpu-1": "#drain", "/admin/runs": "#live tbody tr:first-child a", "/admin/routes": "#live [tabindex]",
	} {
		s.open(path)
		s.focus(selector)
		s.eval("window.focused = document.activeElement; "+swaps, nil)
		s.until(path+" has changed twice", "window.swaps >= 2")
		var kept bool
		if s.eval("document.activeElement === window.focused && document.activeElement.isConnected", &kept); !kept {
			t.Errorf("%s: the focus of %s is lost when the page changes", path, selector)
		}
	}
	s.keepsWhatIsOpen(t)
}

// keepsWhatIsOpen holds that an update neither closes what was opened nor takes what was typed.
func (s *story) keepsWhatIsOpen(t *testing.T) {
	s.open("/admin/nodes/gpu-1")
	s.until("the page is whole", "document.querySelector('#transport') && document.querySelector('form[data-pull]')")
	s.press("#transport summary")
	s.fill("form[data-pull] input[name=model]", "half a na")
	s.eval(swaps, nil)
	s.until("the page has changed twice", "window.swaps >= 2")
	var open bool
	if s.eval("document.querySelector('#transport').open", &open); !open {
		t.Error("what was opened has closed")
	}
	if typed := s.text("document.querySelector('form[data-pull] input[name=model]').value"); typed != "half a na" {
		t.Errorf("what was typed is %q", typed)
	}
}

// named is what the focused element is called by.
const named = `(() => { const e = document.activeElement; if (!e || e === document.body) return ""; return (e.getAttribute("aria-label") || (e.labels && e.labels[0] && e.labels[0].firstChild.textContent) || e.innerText || e.id || e.tagName).trim(); })()`

// tabs presses Tab through the page and returns the names of what it reached.
func (s *story) tabs() (reached []string) {
	s.t.Helper()
	s.eval("document.activeElement.blur(); window.scrollTo(0, 0)", nil)
	for range 200 {
		s.run(chromedp.KeyEvent(kb.Tab))
		name := regexp.MustCompile(`\s+`).ReplaceAllString(s.text(named), " ")
		if name == "" || len(reached) > 1 && name == reached[0] {
			return reached
		}
		reached = append(reached, name)
		var visible bool
		if s.eval("(() => { const o = getComputedStyle(document.activeElement); return o.outlineStyle !== 'none' || o.boxShadow !== 'none'; })()", &visible); !visible {
			s.t.Errorf("the focus of %q can't be seen", name)
		}
	}
	return reached
}
