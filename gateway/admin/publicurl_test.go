package admin

import "testing"

func TestPublicURL(t *testing.T) {
	named := &Certificate{Names: []string{"192.0.2.1", "*.example.org", "edge.example.org"}}
	for _, test := range []struct {
		listen      string
		certificate *Certificate
		want        string
	}{
		{"127.0.0.1:8480", nil, "http://127.0.0.1:8480"},
		{"[::]:8480", nil, "http://there:8480"},
		{":80", nil, "http://there"},
		{":443", nil, "http://there:443"},
		{"[::1]:80", nil, "http://[::1]"},
		{"[::1]:81", nil, "http://[::1]:81"},
		{"0.0.0.0:443", named, "https://edge.example.org"},
		{"127.0.0.1:8443", named, "https://edge.example.org:8443"},
		{"192.0.2.1:443", named, "https://192.0.2.1"},
		{"[::]:443", &Certificate{Names: []string{"*.example.org"}}, "https://there"},
		{"pipe", nil, "http://pipe"},
	} {
		if got := PublicURL(test.listen, "there", test.certificate); got != test.want {
			t.Errorf("%s: %s, want %s", test.listen, got, test.want)
		}
	}
}
