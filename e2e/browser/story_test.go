package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"iop/tunnel"
)

// harm is a name that does what it must not where it becomes markup.
const harm = `<img src=x onerror=window.harmed=1>`

// sentinels are secrets that no page may show.
const (
	firstSecret  = "sk-first-value-that-nobody-may-see"
	secondSecret = "sk-second-value-that-nobody-may-see"
)

// story is an operator's day: one browser, and the processes that it is about.
type story struct {
	*tab
	edge      *process
	dir       string
	public    string // http://127.0.0.1:port
	edgeAdmin string // the same of the admin listener
	token     string // of the admin
	join      string // a join token, read off the page
	key       string // an API key, read off the page
	sim       string
	ollama    string
	slow      string // an Ollama that takes its time to pull
	node      *process
	whole     *testing.T // the test that the parts are subtests of
}

// TestConsole is one flow: each part goes on where the former ended.
func TestConsole(t *testing.T) {
	s := newStory(t)
	parts := []struct {
		name string
		run  func(t *testing.T)
	}{
		{"sign in", s.signsIn}, {"what finds faults", s.catches}, {"pages without anything", s.emptyPages}, {"a Node joins", s.nodeJoins}, {"a hostile Node joins", s.evilNode}, {"a key is made", s.makesKey},
		{"a run streams and is cancelled", s.watchesRun}, {"a Node is drained", s.drains}, {"a model is pulled", s.pulls},
		{"a slot is rotated", s.rotates}, {"the playground", s.plays}, {"usage", s.usage}, {"a Node goes", s.nodeGoes}, {"keyboard", s.keyboard},
		{"pages with everything", s.fullPages}, {"sign out", s.signsOut}, {"plain HTTP from elsewhere", s.inTheOpen}, {"behind nginx", s.behindNginx},
	}
	for _, part := range parts {
		ok := t.Run(part.name, func(t *testing.T) {
			s.t = t
			part.run(t)
			s.clean(part.name)
		})
		if s.t = t; !ok {
			t.FailNow() // what follows would only fail as well
		}
	}
}

func newStory(t *testing.T) *story {
	dir := t.TempDir()
	listen, admin := freePort(t), freePort(t)
	s := &story{dir: dir, public: "http://" + listen, edgeAdmin: "http://" + admin, whole: t}
	master := filepath.Join(dir, "master-key")
	iop(t, nil, "master-key", "create", master)
	s.edge = start(t, "edge", "edge", "--listen", listen, "--admin-listen", admin, "--state", "sqlite://"+filepath.Join(dir, "iop.db"), "--master-key-file", master)
	eventually(t, "the Edge is ready", func() bool {
		res, err := http.Get(s.public + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	token, err := os.ReadFile(filepath.Join(dir, "admin-token"))
	if err != nil {
		t.Fatal(err)
	}
	s.token = strings.TrimSpace(string(token))
	s.sim = startSim(t, "sim", "--models", "talker,thinker-reason,"+harm, "--tokens-per-second", "200")
	s.ollama = startSim(t, "ollama", "--flavour", "ollama", "--models", "llama3.2", "--pull", "4s")
	s.slow = startSim(t, "slow", "--flavour", "ollama", "--models", "phi4", "--pull", "1h")
	s.tab = openTab(t, "http://"+admin)
	return s
}

func (s *story) signsIn(t *testing.T) {
	s.open("/admin/keys")
	s.until("it asks for the token, which has the focus", "document.activeElement.id === 'token'")
	s.allow("status of 401") // the browser tells of the refusal
	s.fill("#token", "adm-iop_wrong")
	s.submit("main button")
	s.shows("Wrong admin token.")
	s.looksAtThis(t, "sign-in-refused")
	s.until("who hears the page knows what is wrong", "document.querySelector('#token').getAttribute('aria-invalid') === 'true' && document.querySelector('[role=alert]')")
	s.fill("#token", s.token)
	s.submit("main button")
	s.until("it goes on to where it was to go", "location.pathname === '/admin/keys'")
	cookies := s.cookies()
	if len(cookies) != 1 || !cookies[0].HTTPOnly || !cookies[0].Secure || cookies[0].SameSite != "Strict" || cookies[0].Path != "/admin" {
		t.Errorf("the browser keeps %+v", cookies)
	}
	if script := s.text("document.cookie"); script != "" {
		t.Errorf("scripts see the cookie: %q", script)
	}
}

// nodeJoins has the page of the Nodes open while one joins.
func (s *story) nodeJoins(t *testing.T) {
	s.open("/admin/nodes")
	s.shows("No Node has connected yet")
	s.fill("main input[name=node]", "gpu-1")
	s.submit("form[action='/admin/join-tokens'] button")
	command := strings.Fields(s.text("document.querySelector('#join-command').textContent"))
	if len(command) != 8 || command[0] != "iop" || command[4] != "--join-token" {
		t.Fatalf("the page says: %q", command)
	}
	s.join = command[5]
	s.looksAtThis(t, "join-command")
	same := s.stays()
	s.node = s.start("node", append(command[1:], "--provider", "sim="+s.sim, "--provider", "ollama="+s.ollama, "--provider", "slow="+s.slow, "--labels", "site=lab")...)
	s.until("the Node is there, online", "document.querySelector('#node-gpu-1')?.innerText.includes('online')")
	same()
	s.until("its Ollama was found", "document.querySelector('#node-gpu-1').innerText.includes('ollama: ok')")
	if shown := s.text("document.querySelector('#join-command').textContent"); !strings.Contains(shown, s.join) {
		t.Error("what is shown once went away when the Node came")
	}
}

// evilNode is a Node that says what an honest one can't.
func (s *story) evilNode(t *testing.T) {
	var made struct{ Token string }
	env := []string{"IOP_EDGE_STATE=sqlite://" + filepath.Join(s.dir, "iop.db"), "IOP_ADMIN_URL=" + s.origin}
	if err := json.Unmarshal([]byte(iop(t, env, "join-token", "create", "--json")), &made); err != nil {
		t.Fatal(err)
	}
	node, err := tunnel.NewSupervisor(tunnel.SupervisorConfig{
		URL: "ws" + strings.TrimPrefix(s.public, "http") + "/tunnel/v1", Node: "evil-1", Handler: idle{}, Logger: slog.New(slog.DiscardHandler),
		Token: func() (string, error) { return made.Token, nil },
		Describe: func() *tunnel.NodeInfo {
			return &tunnel.NodeInfo{
				Labels: map[string]string{"site": harm, harm: "x"}, Version: harm,
				Providers: []tunnel.ProviderInfo{{ID: "p", Adapter: "openai", Engine: harm, EngineVersion: harm, Capacity: 1, OperationsKnown: true, Operations: []string{harm, "chat"}}},
				Models:    []tunnel.ModelInfo{{ID: "evil " + harm, Provider: "p", OwnedBy: harm}},
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = node.Run(ctx) // until the story ends
	}()
	s.whole.Cleanup(func() { cancel(); <-ended })
	s.open("/admin/nodes")
	s.until("it is there", "document.querySelector('#node-evil-1')?.innerText.includes('online')")
	s.open("/admin/nodes/evil-1")
	s.shows("site=" + harm)
	s.shows("evil " + harm)
	s.shows(harm + " " + harm + ", adapter openai")
}

// idle is a Node's work that is never done.
type idle struct{}

// ServeRun implements tunnel.Handler.
func (idle) ServeRun(context.Context, *tunnel.NodeRun) {}

func (s *story) makesKey(t *testing.T) {
	s.open("/admin/keys")
	s.fill("input[name=name]", "alice "+harm)
	s.fill("input[name=owner]", `"><script>window.harmed=1</script>`)
	s.submit("form[action='/admin/keys'] button")
	s.key = s.text("document.querySelector('#new-key-value').textContent")
	if !strings.HasPrefix(s.key, "sk-iop_") {
		t.Fatalf("the key is %q", s.key)
	}
	s.looksAtThis(t, "new-key")
	s.press("[data-copy=new-key-value]")
	s.until("the button says what it did", "/Copied|Selected/.test(document.querySelector('[data-copy=new-key-value]').textContent)")
	s.open("/admin/keys")
	if strings.Contains(s.text("document.documentElement.outerHTML"), s.key) {
		t.Error("the key is shown again")
	}
	s.shows("alice " + harm)
}

// client is an SDK with the key of the page.
func (s *story) client() openai.Client {
	return openai.NewClient(option.WithBaseURL(s.public+"/v1"), option.WithAPIKey(s.key), option.WithMaxRetries(0))
}

func ask(model, orders string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, User: openai.String("sim:" + orders), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
	}
}

// watchesRun has the page of the runs open while an SDK starts a stream, looks into that, and cancels it.
func (s *story) watchesRun(t *testing.T) {
	s.open("/admin/runs")
	s.shows("No runs to show")
	same := s.stays()
	ctx := t.Context()
	client := s.client()
	stream := client.Chat.Completions.NewStreaming(ctx, ask("talker", "tokens=100000,itl=50ms"))
	defer stream.Close()
	if !stream.Next() {
		t.Fatalf("no stream: %v", stream.Err())
	}
	ended := make(chan error, 1)
	go func() {
		for stream.Next() {
		}
		ended <- stream.Err()
	}()
	s.until("the run is in the table", "document.querySelector('#live tbody tr')?.innerText.includes('active')")
	same()
	s.leaves(func() { s.press("#live tbody th a") })
	s.until("it streams", "document.querySelector('#live').innerText.includes('Streaming (now)')")
	same = s.stays()
	bytes := `[...document.querySelectorAll("dt")].find((e) => e.textContent === "Bytes to the client").nextElementSibling.textContent`
	before := s.text(bytes)
	s.until("its bytes grow", bytes+" !== "+quote(before))
	same()
	s.looksAtThis(t, "run-streaming")
	if s.text(`document.querySelector(".facts").innerText`) == "" {
		t.Error("the page says nothing of the run")
	}
	s.submit("#cancel")
	s.shows("The run was cancelled.")
	s.until("the page says so", "document.querySelector('#live').innerText.includes('cancelled') && !document.querySelector('#cancel')")
	if err := <-ended; err == nil {
		t.Error("the client takes a cancelled stream for a whole one")
	}
	// One that ends well, and one that fails, for the pages that follow.
	if _, err := client.Chat.Completions.New(ctx, ask(harm, "tokens=20")); err != nil {
		t.Error(err)
	}
	if _, err := client.Chat.Completions.New(ctx, ask("talker", "status=400")); err == nil {
		t.Error("a request that was to fail did not")
	}
}

func (s *story) drains(t *testing.T) {
	s.open("/admin/nodes")
	s.leaves(func() { s.run(chromedp.Click(chromedp.CSS("#node-gpu-1 th a"))) })
	s.submit("#drain")
	s.shows("The Node is draining")
	s.until("it is drained", "document.querySelector('#live .tiles').innerText.includes('drained')")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan error, 1)
	client := s.client()
	go func() {
		_, err := client.Chat.Completions.New(ctx, ask("talker", "tokens=3"))
		answered <- err
	}()
	eventually(t, "a request waits for the drained Node, or is refused", func() bool {
		select {
		case err := <-answered:
			if answered <- err; err == nil {
				t.Fatal("a drained Node has answered")
			}
			return true
		default:
			return strings.Contains(s.get("/admin/v1/queue"), "talker")
		}
	})
	s.submit("#resume")
	s.shows("The Node was resumed")
	s.until("it is online", "document.querySelector('#live .tiles').innerText.includes('online') && document.querySelector('#drain')")
	cancel()
	<-answered
	if _, err := client.Chat.Completions.New(t.Context(), ask("talker", "tokens=3")); err != nil {
		t.Errorf("after the drain: %v", err)
	}
}

// start starts a process that lives as long as the story, not as the part of it that starts it.
func (s *story) start(name string, args ...string) *process { return start(s.whole, name, args...) }

// get asks the admin API.
func (s *story) get(path string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.edgeAdmin+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// pullsAt returns the states of the pulls at the slow Ollama, the newest first.
func (s *story) pullsAt() (states []string) {
	s.t.Helper()
	res, err := http.Get(s.slow + "/sim/requests?n=200")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var seen []struct{ Path, State string }
	if err := json.NewDecoder(res.Body).Decode(&seen); err != nil {
		s.t.Fatal(err)
	}
	for _, r := range seen {
		if r.Path == "/api/pull" {
			states = append(states, r.State)
		}
	}
	return states
}

// pulls pulls a model, cancels that, pulls it again to the end, uses it and deletes it.
func (s *story) pulls(t *testing.T) {
	s.open("/admin/nodes/gpu-1")
	s.until("the Ollama's models are there", "document.querySelector('#model-ollama-llama3\\\\.2')")
	same := s.stays()
	form := func(provider string) string { return "form[data-pull]:has(input[value=" + provider + "])" }
	s.fill(form("slow")+" input[name=model]", "qwen3:4b")
	s.press(form("slow") + " button")
	s.until("the pull is under way", "document.querySelector('#pulls-1 progress')?.max > 1e9")
	s.looksAtThis(t, "pull")
	s.press("#pulls-1 button")
	s.shows("Pull cancelled")
	eventually(t, "the pull ends at the Ollama", func() bool { return slices.Equal(s.pullsAt(), []string{"cancelled"}) })
	s.press("#pulls-1 button")
	s.until("its card can be put away", "!document.querySelector('#pulls-1').children.length")

	s.eval(`window.seen = []; new MutationObserver(() => { const bar = document.querySelector("progress"); if (bar && bar.hasAttribute("value")) window.seen.push(bar.value / bar.max); })
		.observe(document.querySelector("#pulls-0"), {subtree: true, attributes: true, childList: true}); undefined`, nil)
	s.fill(form("ollama")+" input[name=model]", "qwen3:4b")
	s.press(form("ollama") + " button")
	s.shows("qwen3:4b was pulled.")
	s.until("its progress rose to the whole", "window.seen.length > 5 && window.seen.at(-1) === 1 && window.seen.every((v, i) => i === 0 || v >= window.seen[i - 1])")
	s.until("it is in the list", "document.querySelector('#model-ollama-qwen3\\\\:4b')")
	s.until("the Node has it", "document.querySelector('#provider-ollama').innerText.includes('qwen3:4b')")
	same()
	client := s.client()
	if _, err := client.Chat.Completions.New(t.Context(), ask("qwen3:4b", "tokens=3")); err != nil {
		t.Errorf("a model that was pulled: %v", err)
	}
	s.until("it is in memory now", "document.querySelector('#model-ollama-qwen3\\\\:4b')?.innerText.includes('loaded')")
	s.fill(form("ollama")+" input[name=model]", "missing:"+harm)
	s.press(form("ollama") + " button")
	s.shows("missing:" + harm + " was not pulled")
	s.press("#transport summary")
	s.press("#paths summary")
	s.looksAtThis(t, "pulled")
	s.submit("#delete-ollama-qwen3\\:4b")
	if !strings.Contains(s.confirmed(), "Delete qwen3:4b") {
		t.Errorf("it asked %q", s.confirmed())
	}
	s.shows("The model was deleted")
	s.until("it is gone", "document.querySelector('#model-ollama-llama3\\\\.2') && !document.querySelector('#model-ollama-qwen3\\\\:4b')")
}

// rotates keeps a slot and gives it another value. In token mode no Node is lent it.
func (s *story) rotates(t *testing.T) {
	s.open("/admin/slots")
	s.shows("A slot needs a profile")
	env := []string{"IOP_EDGE_STATE=sqlite://" + filepath.Join(s.dir, "iop.db"), "IOP_ADMIN_URL=" + s.origin}
	iop(t, env, "profile", "set", "openai", "--header", "authorization-bearer", "--base-url", "https://api.example.com/v1")
	s.open("/admin/slots")
	s.fill("form[action='/admin/slots'] input[name=name]", "openai-main")
	s.fill("form[action='/admin/slots'] input[name=value]", firstSecret)
	s.submit("form[action='/admin/slots'] button")
	s.shows("The slot was saved")
	revision := `document.querySelector("#slot-openai-main .num").textContent`
	first := s.text(revision)
	s.press("#change-openai-main summary")
	s.fill("#change-openai-main input[name=value]", secondSecret)
	s.submit("#change-openai-main form[action$=rotate] button")
	s.shows("The slot was rotated to the new value.")
	s.looksAtThis(t, "slot-rotated")
	if second := s.text(revision); second == first {
		t.Errorf("the revision stays %s", second)
	}
	for _, path := range []string{"", "/admin/slots", "/admin/audit"} {
		if path != "" {
			s.open(path)
		}
		if page := s.text("document.documentElement.outerHTML"); strings.Contains(page, firstSecret) || strings.Contains(page, secondSecret) {
			t.Errorf("%s shows a value", path)
		}
	}
	s.shows("slot_rotated")
}

// plays talks to models that answer, think, call tools and fail.
func (s *story) plays(t *testing.T) {
	s.open("/admin/playground")
	say := func(model, text string) {
		t.Helper()
		s.eval(fmt.Sprintf("document.querySelector('select[name=model]').value = %s", quote(model)), nil)
		s.fill("textarea[name=prompt]", text)
		s.press("#playground button[type=submit]")
	}
	last := "document.querySelector('#talk').lastElementChild"
	say("talker", "sim:tokens=100000,itl=20ms Tell me a long story")
	s.until("it answers bit by bit", last+".querySelector('.text').textContent.length > 40")
	s.press("#stop")
	s.until("it can be stopped", last+".innerText.includes('stopped') && document.querySelector('#stop').disabled")

	say("talker", "sim:tokens=20,ttft=150ms Hello")
	s.until("it is done, with its figures", "/first token after \\d+ ms, .*tokens\\/s, \\d+ tokens in, 20 out/.test("+last+".innerText)")
	say("thinker-reason", "sim:tokens=10,reasoning=8 Why?")
	s.until("what it thought stands apart", last+".querySelector('details .thought')?.textContent.length > 10 && "+last+".querySelector('.facts-line')")
	s.press("#playground details summary")
	s.fill("textarea[name=tools]", `[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`)
	say("talker", "sim:tools=1 What is the weather?")
	s.until("the call of a tool is shown", last+".querySelector('pre')?.textContent.startsWith('calls weather({') && "+last+".querySelector('.facts-line')")
	s.fill("textarea[name=tools]", "no JSON")
	say("talker", "Hello")
	s.until("a field's fault is shown", "document.querySelector('#state').textContent.startsWith('Tools: not valid JSON')")
	s.fill("textarea[name=tools]", "")
	s.allow("playground/chat") // the browser tells of the refusal
	say("talker", "sim:status=400 Hello")
	s.until("a refusal is told", last+".querySelector('[role=alert]')?.textContent.includes('400')")
	say(harm, "sim:tokens=5,text=emoji "+harm)
	s.until("names and words are text", last+".querySelector('.who').textContent === "+quote(harm)+" && "+last+".querySelector('.facts-line')")
	s.press("#raw-box summary")
	s.looksAtThis(t, "playground")
	s.until("the raw events are there", "document.querySelector('#raw').innerText.includes('[DONE]')")
}

// usage follows the link to the records.
func (s *story) usage(t *testing.T) {
	s.open("/admin/usage?by=key")
	s.shows("alice " + harm)
	s.until("the days are drawn", "document.querySelector('[data-chart=days] canvas')")
	var csv string
	s.eval(`fetch(document.querySelector("a[href*=records]").href).then(async (r) => r.headers.get("content-type") + "\n" + await r.text())`, &csv)
	if !strings.HasPrefix(csv, "text/csv") || !strings.Contains(csv, "talker") || strings.Count(csv, "\n") < 5 {
		t.Errorf("the records: %.500s", csv)
	}
}

// nodeGoes ends the Node and starts it anew, with the page open: the page tells why the session ended.
func (s *story) nodeGoes(t *testing.T) {
	s.open("/admin/nodes/gpu-1")
	same := s.stays()
	s.node.stop()
	s.shows("Not connected")
	s.node = s.start("node again", "node", "--edge", "ws"+strings.TrimPrefix(s.public, "http")+"/tunnel/v1", "--join-token", s.join, "--name", "gpu-1",
		"--provider", "sim="+s.sim, "--provider", "ollama="+s.ollama, "--provider", "slow="+s.slow, "--labels", "site=lab")
	s.until("it is back", "document.querySelector('#live .tiles').innerText.includes('online')")
	s.until("the former session is in the history", "document.querySelector('[aria-label=\"Ended sessions\"] tbody tr')?.cells[1].innerText.length > 0")
	same()
	t.Logf("it ended: %s", s.text("document.querySelector('[aria-label=\"Ended sessions\"] tbody tr').innerText"))

	s.open("/admin/nodes")
	same = s.stays()
	wrong := s.join[:len(s.join)-4] + "0000"
	s.start("a Node with a wrong token", "node", "--edge", "ws"+strings.TrimPrefix(s.public, "http")+"/tunnel/v1", "--join-token", wrong, "--name", "gpu-7", "--provider", "sim="+s.sim)
	s.until("who is refused is listed", "document.querySelector('#refused tbody tr')?.innerText.match(/gpu-7\\s+claimed\\s+127.0.0.1\\s+unauthorized unknown join token/)")
	same()
}

func (s *story) signsOut(t *testing.T) {
	s.open("/admin/")
	s.submit("header form button")
	s.until("it asks for the token again", "location.pathname === '/admin/sign-in'")
	if cookies := s.cookies(); len(cookies) != 0 {
		t.Errorf("the browser keeps %+v", cookies)
	}
	s.open("/admin/nodes")
	s.until("nothing is shown", "location.pathname === '/admin/sign-in'")
}

// inTheOpen comes over plain HTTP from what is another machine to the browser: no session is kept, and the page says so.
func (s *story) inTheOpen(t *testing.T) {
	s.mu.Lock()
	s.origin = strings.Replace(s.origin, "127.0.0.1", otherHost, 1)
	s.mu.Unlock()
	s.allow("Cross-Origin-Opener-Policy header has been ignored") // what the browser says of any page in the open
	s.open("/admin/sign-in")
	s.shows("your browser won't keep the session cookie")
	s.looksAtThis(t, "in-the-open")
	s.fill("#token", s.token)
	s.submit("main button")
	s.until("it asks again", "location.pathname === '/admin/sign-in'")
	if cookies := s.cookies(); len(cookies) != 0 {
		t.Errorf("the browser keeps %+v", cookies)
	}
}
