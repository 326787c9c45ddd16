package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestNodeSpeaksAsDoctorDoes: what is in the way of a Node stands in its log in the words of "iop doctor node", with the same step.
func TestNodeSpeaksAsDoctorDoes(t *testing.T) {
	now := time.Now()
	cert, key := pairFiles(t, "edge.example.org", now.Add(-time.Hour), now.Add(90*day))
	edge, secureEdge := startEdge(t), startEdge(t, "--tls-cert", cert, "--tls-key", key)
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.Start()
	t.Cleanup(web.Close)
	webAt := strings.TrimPrefix(web.URL, "http://")
	for name, test := range map[string]struct{ edge, provider, tunnelFound, providerFound string }{
		"scheme of an Edge with TLS": {"ws://" + secureEdge.public, "http://127.0.0.1:1", "speaks TLS", "nothing listens"},
		"scheme of one without":      {"wss://" + edge.public, web.URL, "answers in plain HTTP", "/v1/models was not found (404)"},
		"certificate":                {"wss://" + secureEdge.public, "https://" + webAt, "is for another name", "does not speak TLS"},
		"admin port":                 {"ws://" + edge.admin, "http://" + secureEdge.public, "admin listener", "speaks TLS"},
		"another web server":         {"ws://" + webAt, "http://provider.invalid", "is not an Edge", "provider.invalid"},
		"nobody":                     {"ws://127.0.0.1:1", "http://" + edge.public, "nothing listens", "requires a key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := []string{"node", "--name", "n", "--edge", test.edge, "--join-token", "njt-iop_x", "--provider", "s=" + test.provider}
			var found []checkup
			for line, text := range map[string]string{`"tunnel: not connected"`: test.tunnelFound, `"provider":"s"`: test.providerFound} {
				node := begin(t, flags...)
				var said struct{ Found, Do string }
				node.object(line, &said)
				if !strings.Contains(said.Found, text) || said.Do == "" {
					t.Errorf("%s: %+v", line, said)
				}
				found = append(found, checkup{Found: said.Found, Do: said.Do})
			}
			_, d := diagnose(t, flags...)
			for _, said := range found {
				same := false
				for _, c := range d.Checks {
					same = same || strings.HasSuffix(c.Found, said.Found) && c.Do == said.Do
				}
				if !same {
					t.Errorf("the doctor does not say %+v: %+v", said, d.Checks)
				}
			}
		})
	}
}
